"""What metrics are declared and counted, below everything else: families of the scrape, counters, statistics."""
