"""The main job: what a config asks for, stage by stage, in a workdir."""
