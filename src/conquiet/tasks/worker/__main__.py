"""`python -m conquiet.tasks.worker`: a child of the process pool; only its parent starts it."""

from conquiet.tasks.worker.child import main

if __name__ == "__main__":
    main()
