"""The views: functions from a session and a query to an answer of the API."""
