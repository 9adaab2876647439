"""What runs inside the build of an image chain: the patcher and the verification, one JSON file in, JSON out."""
