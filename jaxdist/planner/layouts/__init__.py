"""Search over layouts: meshes times settings, ranked by predicted step time."""
