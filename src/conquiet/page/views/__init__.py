"""What the page shows, a module for each view: what it reads from Redis, and the names of its template."""
