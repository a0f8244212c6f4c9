"""Jobs find no credentials of the pilot's in their environment."""

from __future__ import annotations

import pytest

from hpo_pilot.transformation.job import without_secrets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HPO_PILOT_STORE", "postgresql+psycopg://hpo_pilot:open-sesame@db/hpo_pilot"),
        ("DATABASE_URL", "mysql://:open-sesame@db"),
        ("PGPASSWORD", "x"),
        ("OIDC_AUTH_ID_TOKEN", "x"),
        ("HPO_PILOT_TOKEN_FILE", "x"),
        ("X509_USER_PROXY", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("db_passwd", "x"),
        ("GH_TOKEN", "g"),
    ],
)
def test_credentials_stay_with_the_pilot(name, value):
    assert without_secrets({name: value, "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http_proxy", "http://me:pass@proxy:3128"),
        ("HPO_PILOT_STORE", "postgresql+psycopg://hpo_pilot@/hpo_pilot"),
        ("SERVER", "https://example.org:8443/a@b"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PASSAGE", "x"),
        ("OMP_NUM_THREADS", "1"),
    ],
)
def test_the_rest_passes(name, value):
    assert without_secrets({name: value}) == {name: value}
