// Place: which daemon a command is about, and where its files are. Plain values, no state.
//
//   RUN_DIR/unreftd.sock      the local session
//   RUN_DIR/peers.sock        where other nodes of this machine reach the daemon
//   RUN_DIR/owner             whose it is (base/run_owner.h)
//   RUN_DIR/unreftd.lock      held by the daemon, carries its pid
//   RUN_DIR/unreftd.log       what daemon and supervisor say
//   RUN_DIR/supervisor.lock   held by `unreft up --supervise`
//   RUN_DIR/records           the daemon's record store
//   /dev/shm/unreft.<job>.<node>.*   its memory
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unreft::cli {

inline constexpr char kDaemonName[] = "unreftd";
inline constexpr char kSupervisorName[] = "unreft";
inline constexpr char kDaemonLock[] = "unreftd.lock";
inline constexpr char kSupervisorLock[] = "supervisor.lock";

struct Place {
  std::string job = "default";
  uint64_t node = 0;
  std::string run_dir;  // absolute once Resolve succeeded

  std::string socket() const { return run_dir + "/unreftd.sock"; }
  std::string log() const { return run_dir + "/unreftd.log"; }
  std::string records() const { return run_dir + "/records"; }
  std::string daemon_lock() const { return run_dir + "/" + kDaemonLock; }
  std::string supervisor_lock() const { return run_dir + "/" + kSupervisorLock; }
  // "job demo, node 0", for messages.
  std::string Name() const;
};

// Fills an empty `run_dir` with ${XDG_RUNTIME_DIR:-/tmp}/unreft-<uid>/<job> and makes it absolute.
// InvalidArgument for a bad job name or a path too long for a socket.
absl::Status Resolve(Place& place);

// Removes what unreftd and this command make in the run directory, and it, too, if nothing else is
// in it. Of a directory that is absent: nothing.
absl::Status RemoveRunFiles(const Place& place);

// Removes these from the directory, as far as they are there, and it, if nothing else is in it.
absl::Status RemoveFiles(const std::string& directory, const std::vector<std::string>& names);

// What a training process needs to find its daemon.
std::vector<std::pair<std::string, std::string>> TrainerEnvironment(const Place& place);

// `text` as one word of a POSIX shell.
std::string ShellQuote(const std::string& text);

// The path of this very program, and of its sibling `name`.
std::string SelfPath();
std::string SiblingPath(const std::string& name);

}  // namespace unreft::cli
