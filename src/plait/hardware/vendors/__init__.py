"""What is on this machine, vendor by vendor; one file a vendor."""
