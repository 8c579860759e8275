"""n-step returns one row at a time, summed until the first end."""


def nstep_rows(reward, terminated, truncated, valid, nstep, gamma):
    """Lists of one trajectory's rows -> [(R, k, discount)] per row; invalid rows give (0, 0, 1)."""
    out = []
    for t in range(len(reward)):
        total, k, dead = 0.0, 0, False
        while k < nstep and t + k < len(reward) and valid[t + k]:
            total += gamma**k * reward[t + k]
            k += 1
            if terminated[t + k - 1]:
                dead = True
                break
            if truncated[t + k - 1]:
                break
        out.append((total, k, 0.0 if dead else gamma**k))
    return out
