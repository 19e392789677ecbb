package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

// copyBytes is the floor of any proxy in Go that is a process of its own: it knows nothing of HTTP, and reads and
// writes what comes. It ends with its standard input.
func copyBytes(engine string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is there at once
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); _ = l.Close() }()
	for {
		client, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // it was closed
		}
		go func() {
			defer client.Close()
			up, err := net.Dial("tcp", engine) //nolint:noctx // a connection over loopback is there at once
			if err != nil {
				return
			}
			defer up.Close()
			go func() { pump(up, client); _ = up.Close() }()
			pump(client, up)
		}()
	}
}

// pump reads and writes until one of the two ends.
func pump(to io.Writer, from io.Reader) {
	b := make([]byte, 8<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
