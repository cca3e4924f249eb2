#include "transport/tls_certificates.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

namespace unreft {
namespace {

namespace tls_api = grpc::experimental;

constexpr Duration kRefusalInterval = std::chrono::seconds(30);
constexpr unsigned kWatchInterval_s = 1;  // of gRPC, at the file in memory

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// Calls a function within the handshake, on gRPC's threads, before any byte of a request.
class Verifier final : public tls_api::ExternalCertificateVerifier {
 public:
  using Check = std::function<absl::Status(tls_api::TlsCustomVerificationCheckRequest&)>;
  explicit Verifier(Check check) : check_(std::move(check)) {}

  bool Verify(tls_api::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* result) override {
    const absl::Status status = check_(*request);
    // gRPC takes UNAUTHENTICATED for a refusal.
    *result = status.ok()
                  ? grpc::Status::OK
                  : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(status.message()));
    return true;
  }
  void Cancel(tls_api::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const Check check_;
};

// A file without a name. Its time is the number: gRPC sees by it that key and certificate are of
// one reading.
absl::StatusOr<UniqueFd> MemoryFile(std::string_view text, uint64_t number) {
  UniqueFd fd(memfd_create("unreft-tls", MFD_CLOEXEC));
  if (!fd) return absl::ErrnoToStatus(errno, "memory for a certificate");
  const auto size = static_cast<ssize_t>(text.size());
  if (fchmod(fd.get(), 0400) != 0 || write(fd.get(), text.data(), text.size()) != size) {
    return absl::ErrnoToStatus(errno, "memory for a certificate");
  }
  const timespec time{static_cast<time_t>(number), 0};
  const timespec times[2] = {time, time};
  if (futimens(fd.get(), times) != 0) return absl::ErrnoToStatus(errno, "time of a certificate");
  return fd;
}

}  // namespace

absl::StatusOr<std::shared_ptr<TlsCertificates>> TlsCertificates::Create(
    TlsCertificatesOptions options, Executor& executor, Log* log) {
  if (options.reload < std::chrono::seconds(1)) {
    return absl::InvalidArgumentError("the interval at which TLS files are read is below 1 s");
  }
  std::shared_ptr<TlsCertificates> certificates(
      new TlsCertificates(std::move(options), executor, log));
  const TlsCertificatesOptions& own = certificates->options_;
  absl::StatusOr<std::shared_ptr<const TlsPair>> pair = TlsPair::Read(own.files, own.use, own.uri);
  if (!pair.ok()) return pair.status();
  if (absl::Status status = certificates->Use(*std::move(pair)); !status.ok()) return status;
  const auto path_of = [](const UniqueFd& file) {
    return fmt::format("/proc/self/fd/{}", file.get());
  };
  certificates->provider_ = std::make_shared<tls_api::FileWatcherCertificateProvider>(
      path_of(certificates->own_file_), path_of(certificates->own_file_),
      path_of(certificates->authorities_file_), kWatchInterval_s);
  executor.Post([weak = std::weak_ptr(certificates)] {
    if (const auto alive = weak.lock()) alive->ReloadLater();
  });
  return certificates;
}

absl::Status TlsCertificates::Use(std::shared_ptr<const TlsPair> pair) {
  ++uses_;
  for (auto [text, file] : {std::pair{&pair->key_and_chain(), &own_file_},
                            std::pair{&pair->authorities(), &authorities_file_}}) {
    absl::StatusOr<UniqueFd> made = MemoryFile(*text, uses_);
    if (!made.ok()) return made.status();
    if (!*file) {
      *file = *std::move(made);
    } else if (dup3(made->get(), file->get(), O_CLOEXEC) < 0) {  // all at once, by the same path
      return absl::ErrnoToStatus(errno, "replace a certificate");
    }
  }
  if (log_ != nullptr) {
    log_->Info("{}: the certificate '{}' with the serial {} is in use, valid until {}",
               options_.name, options_.files.cert, pair->serial(),
               tls_files::TimeText(pair->expires_s()));
  }
  const std::lock_guard lock(mutex_);
  current_ = std::move(pair);
  return absl::OkStatus();
}

void TlsCertificates::ReloadLater() {
  executor_.After(options_.reload, [weak = weak_from_this()] {
    const std::shared_ptr<TlsCertificates> alive = weak.lock();
    if (alive == nullptr) return;
    (void)alive->Look(/*tells_at_once=*/false);
    alive->ReloadLater();
  });
}

absl::Status TlsCertificates::Reload() { return Look(/*tells_at_once=*/true); }

absl::Status TlsCertificates::Look(bool tells_at_once) {
  absl::StatusOr<std::shared_ptr<const TlsPair>> pair =
      TlsPair::Read(options_.files, options_.use, options_.uri);
  if (!pair.ok()) {
    const std::string bad(pair.status().message());
    if (tells_at_once || bad == found_bad_) Tell(pair.status());
    found_bad_ = bad;
    return pair.status();
  }
  found_bad_.clear();
  const bool recovered = !std::exchange(told_bad_, "").empty();
  const std::shared_ptr<const TlsPair> before = current();
  absl::Status used = absl::OkStatus();
  if ((*pair)->key_and_chain() != before->key_and_chain() ||
      (*pair)->authorities() != before->authorities()) {
    used = Use(*std::move(pair));
  } else if (recovered && log_ != nullptr) {
    log_->Info("{}: the files are again those in use", options_.name);
  }
  const std::lock_guard lock(mutex_);
  files_are_bad_ = false;
  return used;
}

void TlsCertificates::Tell(const absl::Status& bad) {
  const std::string message(bad.message());
  const std::shared_ptr<const TlsPair> before = current();
  {
    const std::lock_guard lock(mutex_);
    files_are_bad_ = true;
  }
  if (std::exchange(told_bad_, message) == message || log_ == nullptr) return;
  const std::string until = tls_files::TimeText(before->expires_s());
  const bool is_over = before->expires_s() <= std::time(nullptr);
  log_->Error("{}: {}; the certificate with the serial {} stays in use, {}: put good files there",
              options_.name, message, before->serial(),
              is_over ? fmt::format("which peers refuse, since it expired at {}", until)
                      : fmt::format("valid until {}", until));
}

std::shared_ptr<grpc::ChannelCredentials> TlsCertificates::ForChannel(
    CheckServer check, std::function<void(const absl::Status&)> refused) {
  tls_api::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();  // or gRPC would read those of the system
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);  // the verifier does
  options.set_check_call_host(false);
  options.set_certificate_verifier(tls_api::ExternalCertificateVerifier::Create<Verifier>(
      [self = shared_from_this(), check = std::move(check),
       refused = std::move(refused)](tls_api::TlsCustomVerificationCheckRequest& request) {
        absl::Status status = self->current()->CheckPeer(
            TlsUse::kListens, View(request.peer_cert()), View(request.peer_cert_full_chain()));
        if (status.ok()) status = check(request);
        refused(status);
        return status;
      }));
  return tls_api::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> TlsCertificates::ForServer() {
  tls_api::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();  // which it tells callers
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);  // the verifier does
  options.set_certificate_verifier(tls_api::ExternalCertificateVerifier::Create<Verifier>(
      [self = shared_from_this()](tls_api::TlsCustomVerificationCheckRequest& request) {
        const std::string_view shown = View(request.peer_cert());
        absl::Status status = self->current()->CheckPeer(TlsUse::kConnects, shown,
                                                         View(request.peer_cert_full_chain()));
        if (!status.ok()) self->LogRefused("", tls_files::SubjectOf(shown), status);
        return status;
      }));
  return tls_api::TlsServerCredentials(options);
}

CertificateState TlsCertificates::state() const {
  const std::lock_guard lock(mutex_);
  return {options_.name, current_->expires_s(), files_are_bad_};
}

std::shared_ptr<const TlsPair> TlsCertificates::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

void TlsCertificates::LogRefused(const std::string& address, const std::string& subject,
                                 const absl::Status& why) const {
  if (log_ == nullptr) return;
  log_->WarnEvery("refusal of " + subject, kRefusalInterval, executor_.Now(),
                  "refused: {}: a caller{}: {}", options_.name,
                  address.empty() ? "" : " at " + address, why.message());
}

void Reload(Log& log, std::initializer_list<TlsCertificates*> all) {
  const absl::Status reopened = log.Reopen();
  if (!reopened.ok()) log.Error("{}: the lines go to the file that was open", reopened.message());
  log.Info("signal {}: the log goes on here, the TLS files are looked at", SIGHUP);
  for (TlsCertificates* certificates : all) {
    if (certificates != nullptr) (void)certificates->Reload();  // it logs what is bad
  }
}

}  // namespace unreft
