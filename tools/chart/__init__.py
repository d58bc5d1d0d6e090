"""What charts/echorl accepts, and the parts of the chart that are written from the code."""
