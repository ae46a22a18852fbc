"""Programs to look at and to run; not part of the wheel."""
