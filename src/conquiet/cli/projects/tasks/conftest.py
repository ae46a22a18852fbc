"""The tests have a database of their own."""

import os
import tempfile

# Before any test imports the app.
os.environ["CONQUIET_DATABASE_URL"] = f"sqlite:///{tempfile.mkdtemp()}/test.db"
