"""One application for users of a service: the REST API and the pages.

`api.py` has the routes of the REST API, most of them derived from the operations of `hpo_pilot.operations.client`, with
errors, uploads and examples in `api_context.py`. `pages.py` and `forms.py` answer browsers; `search_views.py` and
`server_jobs.py` prepare their data, `rendering.py` renders it, and `live.py` pushes changes. `sessions.py` has the
sign-in and the guards in front of API and pages. `app.py` joins all of it; ``python -m hpo_pilot.web`` runs it.
"""
