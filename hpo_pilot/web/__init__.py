"""One web application: REST API, pages, live updates, and its clients. Begin with `operations.py` and `app.py`."""
