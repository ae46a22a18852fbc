"""What operators do with the page: a dry run, a question, and an audit entry for each."""
