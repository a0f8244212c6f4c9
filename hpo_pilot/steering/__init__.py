"""The steering service: the loop that joins optimizers, PanDA and the store, and what runs it."""
