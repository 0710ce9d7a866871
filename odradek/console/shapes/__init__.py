"""The shapes of the API: queries, answers, errors, their JSON, and the description of all of them."""
