package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of one file.
type mutant struct {
	name      string // file, function, what is changed, and which of its kind within the function
	file      string // absolute path
	from, to  int    // the bytes that are replaced
	by        string
	line, col int
}

// swaps are the operators that change places with another one.
var swaps = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.EQL: "!=", token.NEQ: "==",
	token.LAND: "||", token.LOR: "&&",
	token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*",
}

// quiet are methods that only tell somebody something: a program without them does the same.
var quiet = []string{"Debug", "Info", "Warn", "Error", "Log", "LogAttrs", "Printf", "Println", "Inc", "Observe"}

// find lists the changes that can be made to the program's files in dir.
func find(dir string) ([]mutant, error) {
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var found []mutant
	for _, name := range pkg.GoFiles {
		path := filepath.Join(dir, name)
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
				found = append(found, ofFunction(set, path, src, f)...)
			}
		}
	}
	return found, nil
}

func ofFunction(set *token.FileSet, path string, src []byte, f *ast.FuncDecl) []mutant {
	var found []mutant
	seen := make(map[string]int)
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	add := func(what string, at ast.Node, from, to token.Pos, by string) {
		what = strings.Join(strings.Fields(what), " ")
		if len(what) > 60 {
			what = what[:60]
		}
		seen[what]++
		p := set.Position(at.Pos())
		found = append(found, mutant{
			name: fmt.Sprintf("%s/%s %s: %s #%d", filepath.Base(filepath.Dir(path)), filepath.Base(path), functionName(f), what, seen[what]),
			file: path, from: offset(from), to: offset(to), by: by, line: p.Line, col: p.Column,
		})
	}
	text := func(n ast.Node) string { return string(src[offset(n.Pos()):offset(n.End())]) }
	remove := func(s ast.Stmt) { add("without "+text(s), s, s.Pos(), s.End(), "") }
	conditions := make(map[ast.Expr]bool)
	negate := func(cond ast.Expr) {
		if cond != nil {
			conditions[cond] = true
			add("not "+text(cond), cond, cond.Pos(), cond.End(), "!("+text(cond)+")")
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			negate(n.Cond)
		case *ast.ForStmt:
			negate(n.Cond)
		case *ast.BinaryExpr:
			// That of a whole condition is what its negation is.
			if by, ok := swaps[n.Op]; ok && (!conditions[n] || n.Op != token.EQL && n.Op != token.NEQ) {
				add(text(n)+" with "+by, n, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), by)
			}
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && !tells(call) {
				remove(n)
			}
		case *ast.IncDecStmt:
			remove(n)
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				remove(n)
			}
		case *ast.Ident:
			switch n.Name {
			case "true":
				add("false for true", n, n.Pos(), n.End(), "false")
			case "false":
				add("true for false", n, n.Pos(), n.End(), "true")
			}
		}
		return true
	})
	return found
}

func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	if ident, ok := typ.(*ast.Ident); ok {
		return ident.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

func tells(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic"
	case *ast.SelectorExpr:
		return slices.Contains(quiet, f.Sel.Name)
	}
	return false
}

// choose sorts the changes into the order in which a seed tries them. A change keeps its place when others come or go.
func choose(mutants []mutant, seed uint64) {
	place := func(m mutant) uint64 {
		h := fnv.New64a()
		_ = binary.Write(h, binary.LittleEndian, seed)
		_, _ = h.Write([]byte(m.name))
		// The last bytes hardly move the upper bits of this hash.
		sum := h.Sum64()
		sum ^= sum >> 33
		sum *= 0xff51afd7ed558ccd
		return sum ^ sum>>33
	}
	slices.SortFunc(mutants, func(a, b mutant) int { return cmp.Compare(place(a), place(b)) })
}
