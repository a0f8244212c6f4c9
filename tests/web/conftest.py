from tests.panda.conftest import task  # noqa: F401  # a fixture
