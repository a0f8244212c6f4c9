"""One application for users of a service: operations on searches, the REST API, the pages and the notebook.

Begin with `operations.py`: `SearchClient` declares every operation. `local_client.py` implements it on a store in this
process, `rest_client.py` on a service at a URL (`connection.py` has its HTTP). `api.py` has the routes of the REST API,
with errors, uploads and examples in `api_context.py`. `pages.py` and `forms.py` answer browsers; `search_views.py` and
`server_jobs.py` prepare their data, `rendering.py` renders it, and `live.py` pushes changes. `sessions.py` has the
sign-in and the guards in front of API and pages. `app.py` joins all of it; ``python -m hpo_pilot.web`` runs it.
`notebook.py` is for notebooks and scripts.
"""
