"""Everything that talks: to the API server and to orchestrators. No decisions."""
