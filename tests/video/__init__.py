"""Tests of pictures of episodes."""
