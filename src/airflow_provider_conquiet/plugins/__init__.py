"""What Airflow loads at start-up."""
