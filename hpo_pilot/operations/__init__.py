"""What a user can ask and do about searches, in process or through a service.

Begin with `client.py`: `SearchClient` has every operation as a method. `here.py` is a store that this process opens,
`remote.py` a service at a URL (`connection.py` has its HTTP); `operation.py` declares an operation with its route.
`documents.py` makes the documents of searches, `families.py` joins those of one file. `notebook.py` and `functions.py`
are for notebooks and scripts.
"""
