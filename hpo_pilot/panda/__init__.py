"""The workflow manager for PanDA: task parameters, panda-client calls, metadata to figures of merit."""
