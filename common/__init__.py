"""The ground floor: what every room stands on. It imports no room."""
