"""The REST API of the service: what `hpo-pilot --service URL` talks to."""
