"""Contract tests for classes of other packages: functions that raise AssertionError, for any test runner.

`optimizers.check_optimizer`, `launchers.check_launcher` and `runtimes.check_runtime` run all checks of a contract. The
tests of hpo-pilot run the same checks on its own classes. Nothing in the product imports this room.
"""
