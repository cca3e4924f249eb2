#include "base/unix_listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/unix_socket.h"

namespace unreft {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;

constexpr Duration kExhaustedPause = std::chrono::milliseconds(100);

// The file at a path, whatever is later put there.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

FileIdentity IdentityOf(const struct stat& info) { return {info.st_dev, info.st_ino}; }

}  // namespace

// The listening socket. Outlives its listener until the handlers under way are gone, silently.
class UnixListener::Acceptor : public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(AsioExecutor& executor, UniqueFd socket, std::string path, FileIdentity file,
           UnixChannelOptions options, OnRefused on_refused)
      : executor_(executor),
        socket_(executor.context(), socket.Release()),
        path_(std::move(path)),
        file_(file),
        options_(options),
        on_refused_(std::make_shared<OnRefused>(std::move(on_refused))) {}

  void Start(OnAccept on_accept) {
    UNREFT_CHECK(!on_accept_, "a listener is started once");
    on_accept_ = std::make_shared<OnAccept>(std::move(on_accept));
    Await();
  }

  void Close() {
    open_ = false;
    const auto on_accept = std::exchange(on_accept_, nullptr);
    const auto on_refused = std::exchange(on_refused_, nullptr);
    const UniqueFd closed(socket_.release());  // which cancels what waits for it
    struct stat info{};
    if (lstat(path_.c_str(), &info) == 0 && IdentityOf(info) == file_) unlink(path_.c_str());
  }

 private:
  void Await() {
    socket_.async_wait(Descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error && self->open_) self->AcceptOne();
                       });
  }

  // One for each turn; the wait ends at once while there are more.
  void AcceptOne() {
    UniqueFd fd(accept4(socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      executor_.After(kExhaustedPause, [self = shared_from_this()] {
        if (self->open_) self->Await();
      });
      return;
    }
    // Before whoever has come is let in: should that throw, others are waited for all the same.
    Await();
    if (fd) Admit(std::move(fd));
  }

  void Admit(UniqueFd fd) {
    const auto peer = PeerOf(fd.get());
    if (!peer.ok()) return;  // it is gone already
    if (!PeerIsWelcome(*peer, geteuid())) {
      const auto on_refused = on_refused_;
      if (*on_refused) (*on_refused)(*peer);
      return;
    }
    const auto on_accept = on_accept_;
    (*on_accept)(std::make_unique<UnixChannel>(executor_, std::move(fd), options_), *peer);
  }

  AsioExecutor& executor_;
  Descriptor socket_;
  const std::string path_;
  const FileIdentity file_;
  const UnixChannelOptions options_;
  // Shared with the turn in which one runs, since it may destroy the listener.
  std::shared_ptr<OnRefused> on_refused_;
  std::shared_ptr<OnAccept> on_accept_;
  bool open_ = true;
};

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Create(AsioExecutor& executor,
                                                                   const std::string& path,
                                                                   UnixChannelOptions options,
                                                                   OnRefused on_refused) {
  auto socket = ListenUnixSocket(path);
  if (!socket.ok()) return socket.status();
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, "look at " + path);
  auto acceptor = std::make_shared<Acceptor>(executor, std::move(*socket), path, IdentityOf(info),
                                             options, std::move(on_refused));
  return std::unique_ptr<UnixListener>(new UnixListener(std::move(acceptor)));
}

UnixListener::UnixListener(std::shared_ptr<Acceptor> acceptor) : acceptor_(std::move(acceptor)) {}

UnixListener::~UnixListener() { acceptor_->Close(); }

void UnixListener::Start(OnAccept on_accept) { acceptor_->Start(std::move(on_accept)); }

}  // namespace unreft
