// Package runtimecmd is what the commands `stationmaster runtime …` have in common: their exit
// statuses, how their arguments are read, and their log.
package runtimecmd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
)

// The exit statuses: the work was done, it couldn't be, or the arguments are bad.
const (
	OK    = 0
	Error = 1
	Usage = 2
)

// Command is one of them, for one run.
type Command struct {
	// Flags are to be declared before Parse; --log_level is there.
	Flags  *flag.FlagSet
	stderr io.Writer
	level  *string
}

// New begins a command, by its whole name. What it has to say goes to stderr.
func New(name string, stderr io.Writer) *Command {
	c := &Command{Flags: flag.NewFlagSet(name, flag.ContinueOnError), stderr: stderr}
	c.Flags.SetOutput(io.Discard)
	c.level = c.Flags.String("log_level", "info", "debug, info, warn or error")
	return c
}

// Parse reads the arguments, which are flags all of them, such as example, and returns the log. Where
// there is none the command ends with status: help was asked for and given, or the arguments are bad,
// which was told.
func (c *Command) Parse(args []string, example string) (log *slog.Logger, status int) {
	if err := c.Flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		c.Flags.SetOutput(c.stderr)
		c.Flags.Usage()
		return nil, OK
	} else if err != nil {
		// Without the list of all flags, behind which a pod's status would lose the error.
		return nil, c.Misused(fmt.Errorf("%w; --help lists the flags", err))
	}
	if c.Flags.NArg() > 0 {
		return nil, c.Misused(fmt.Errorf("unexpected argument %q; all are flags such as %s", c.Flags.Arg(0), example))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(*c.level)); err != nil {
		return nil, c.Misused(fmt.Errorf("--log_level %q: use debug, info, warn or error", *c.level))
	}
	return slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: level})), OK
}

// Misused tells what is wrong with the arguments, and returns the status Usage.
func (c *Command) Misused(err error) int {
	c.tell(err)
	return Usage
}

// Failed tells why the command couldn't work, and returns the status Error.
func (c *Command) Failed(err error) int {
	c.tell(err)
	return Error
}

func (c *Command) tell(err error) { fmt.Fprintf(c.stderr, "%s: %v\n", c.Flags.Name(), err) }
