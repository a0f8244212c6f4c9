"""Whether others' payloads could take what is the service's: its tokens."""

from __future__ import annotations

from hpo_pilot.server.access.authority import Authority
from hpo_pilot.service.nickname import nickname
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.workdir import WorkDir


def exposures(workdir: WorkDir, reach: Reach, slots: int) -> list[str]:
    """What to warn whoever runs the service of.

    A payload of the local pilot is a process of the service's account: it can read the signing key of tokens, and with
    that be anybody. That is no harm where all payloads are the account's own.

    Args:
        workdir: the service's.
        reach: where the servers listen, and whom they let in.
        slots: how many jobs the local pilot runs side by side.

    Raises:
        InputError: the token folder cannot be used.
    """
    found = []
    if slots and (reasons := _others(workdir, reach)):
        found.append(
            f"{' and '.join(reasons)}, and the local pilot runs all users' payloads as this account, which can read "
            f"the signing key of tokens in {workdir.tokens}: whoever may submit could become anybody. For a group "
            "give --slots 0, and run `hpo-pilot pilot` as another account (deploy/README.md)"
        )
    return found


def _others(workdir: WorkDir, reach: Reach) -> list[str]:
    """Why others than the account may submit."""
    reasons = []
    if reach.is_open:
        reasons.append("the servers can be reached from elsewhere")
    if reach.issuers:
        reasons.append("tokens of other issuers are taken")
    others = sorted({token.name for token in Authority(workdir.tokens).issued() if not token.revoked} - {nickname()})
    if others:
        reasons.append(f"there are tokens of {', '.join(others[:3])}{', …' if len(others) > 3 else ''}")
    return reasons
