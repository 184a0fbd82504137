"""`make hunt`: problems drawn at random for as long as wished, to find a claim that is false."""
