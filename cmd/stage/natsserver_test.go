package main

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptNATS runs a NATS server that wants a login, until the end of the script, and puts its URL into a variable:
//
//	nats URL user password
//
// A third word makes it another: plain has no JetStream, and poor has a user poor of the same password, who may do
// nothing.
func scriptNATS(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || len(args) > 4 {
		ts.Fatalf("usage: nats VARIABLE user password [plain|poor]")
	}
	options := &server.Options{
		Host: "127.0.0.1", Port: -1, Username: args[1], Password: args[2], JetStream: true, StoreDir: ts.MkAbs("." + args[0]), NoSigs: true, NoLog: true,
	}
	switch args = append(args, ""); args[3] {
	case "plain":
		options.JetStream = false
	case "poor":
		options.Users = []*server.User{{
			Username: "poor", Password: args[2],
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{">"}}},
		}, {Username: args[1], Password: args[2]}}
		options.Username, options.Password = "", ""
	}
	srv, err := server.NewServer(options)
	ts.Check(err)
	srv.Start()
	ts.Defer(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(time.Minute) {
		ts.Fatalf("the NATS server does not start")
	}
	ts.Setenv(args[0], srv.ClientURL())
}

// scriptContext writes a file in which variables are expanded, such as a context of the nats CLI:
//
//	context config/nats/context/prod.json {"url":"$PROD"}
func scriptContext(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: context file text…")
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	ts.Check(os.WriteFile(path, []byte(strings.Join(args[1:], " ")), 0o600))
}
