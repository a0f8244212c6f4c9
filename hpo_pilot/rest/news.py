"""The news of a search's progress, for the call that waits for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from hpo_pilot.client.documents import ProgressDocument
from hpo_pilot.monitor.newsroom import News, Newsroom


def progress_news(look: Callable[[str], ProgressDocument]) -> Newsroom[bytes]:
    """Tells how far searches are, as a `ProgressDocument` in JSON with its ETag; `look` asks the store."""

    def now(identity: str) -> News[bytes]:
        content = json.dumps(look(identity), allow_nan=False).encode()
        return News(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    return Newsroom(now)
