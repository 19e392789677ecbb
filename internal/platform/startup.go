package platform

import "time"

// Granted is how long an engine may take from its start until it is ready that took so long
// before: a busy machine or a cold disk makes it several times as long.
func Granted(startup time.Duration) time.Duration { return 3*startup + time.Minute }
