"""Shows results: figures, the HTML report, exports. `figure.py` has the drawing, `catalogue.py` the list of figures."""
