// EtcdProcesses: a real etcd cluster on 127.0.0.1 for a test, in a directory of its own.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace unreft {

class EtcdProcesses {
 public:
  // Why there can be none: the package is not installed. Empty: there can.
  static std::string Missing();

  // Starts `members` of them and returns when all of them listen.
  explicit EtcdProcesses(int members);
  // Kills them and removes their directory.
  ~EtcdProcesses();
  EtcdProcesses(const EtcdProcesses&) = delete;
  EtcdProcesses& operator=(const EtcdProcesses&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  // "127.0.0.1:P,127.0.0.1:P"
  std::string endpoints() const;
  std::string endpoint(int member) const;

  void Kill(int member);
  // Returns when it listens.
  void Start(int member);

 private:
  struct Member {
    int client_port;
    int peer_port;
    pid_t pid = 0;
  };

  void Spawn(int member);
  void WaitUntilItListens(int member);

  std::string directory_;
  std::vector<Member> members_;
};

}  // namespace unreft
