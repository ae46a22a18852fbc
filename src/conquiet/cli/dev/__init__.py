"""What `conquiet dev` runs: the processes of a project, and a server beside them."""
