"""The documentation as a site: what mkdocs needs beside the pages, and what is generated from the code."""
