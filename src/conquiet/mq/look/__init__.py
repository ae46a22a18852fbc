"""Looking at topics and groups, and the changes that an administrator makes."""
