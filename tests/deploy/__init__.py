"""What deploy/ and docs/ say of metrics is what real processes emit."""
