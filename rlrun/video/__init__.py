"""Pictures of episodes: video files, panels of what the agent computes, a window."""
