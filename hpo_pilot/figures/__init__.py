"""What is drawn of a search, as specifications for plotly.js, and the summaries that figures and pages show."""
