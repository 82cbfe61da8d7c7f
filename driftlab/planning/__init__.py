"""What a scan will take before it runs: operations and bytes, a short calibration, a forecast for N workers."""
