"""The dashboards that the chart ships, and pictures of what they show."""
