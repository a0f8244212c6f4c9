"""BigPanDA's JSON (PanDAWMS/panda-bigmon-core): tasks and jobs at the paths, and in the form, that scripts read."""
