"""The calls of `/api/v1`, one module per group; each is declared through `web.endpoints`."""
