#include "transport/grpc_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "transport/grpc_status.h"
#include "transport/tls_files.h"

namespace unreft {
namespace {

namespace tls_api = grpc::experimental;

unsigned Seconds(Duration duration) {
  return static_cast<unsigned>(std::chrono::duration_cast<std::chrono::seconds>(duration).count());
}

std::string ToString(grpc::string_ref text) { return {text.data(), text.size()}; }

// The job that the client says it belongs to.
absl::Status CheckSaidJob(const grpc::CallbackServerContext& context, const std::string& job) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(grpc_status::kJobKey);
  if (found == metadata.end()) {
    return absl::PermissionDeniedError(
        fmt::format("this node serves job {}, the caller names none", job));
  }
  const std::string said = ToString(found->second);
  if (said == job) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("this node serves job {}, the caller is of job {}", job, said));
}

// The job that the certificate of `who` was made for.
absl::Status CheckUris(const std::vector<std::string>& uris, const std::string& job,
                       std::string_view who) {
  const std::string wanted = GrpcJobUri(job);
  if (std::ranges::find(uris, wanted) != uris.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format("the {}'s certificate is for [{}], not for {}",
                                                 who, fmt::join(uris, ", "), wanted));
}

class PlainIdentity final : public GrpcIdentity {
 public:
  explicit PlainIdentity(std::string job) : job_(std::move(job)) {}

  std::shared_ptr<grpc::ServerCredentials> ForServer() const override {
    return grpc::InsecureServerCredentials();
  }
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(
      std::shared_ptr<ServerRefusal> /*refusal*/) const override {
    return grpc::InsecureChannelCredentials();
  }
  absl::Status CheckClient(const grpc::CallbackServerContext& context) const override {
    return CheckSaidJob(context, job_);
  }

 private:
  const std::string job_;
};

// Called on gRPC's threads within the handshake, after the chain was verified.
class JobVerifier final : public tls_api::ExternalCertificateVerifier {
 public:
  JobVerifier(std::string job, std::shared_ptr<ServerRefusal> refusal)
      : job_(std::move(job)), refusal_(std::move(refusal)) {}

  bool Verify(tls_api::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* result) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) uris.push_back(ToString(uri));
    const absl::Status status = CheckUris(uris, job_, "server");
    refusal_->Set(status);
    // gRPC takes UNAUTHENTICATED for a refusal.
    *result = status.ok()
                  ? grpc::Status::OK
                  : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(status.message()));
    return true;
  }
  void Cancel(tls_api::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::string job_;
  const std::shared_ptr<ServerRefusal> refusal_;  // shared with the users of the channel
};

class TlsIdentity final : public GrpcIdentity {
 public:
  TlsIdentity(std::string job, const GrpcTlsOptions& tls)
      : job_(std::move(job)),
        files_(std::make_shared<tls_api::FileWatcherCertificateProvider>(
            tls.key_file, tls.cert_file, tls.ca_file, Seconds(tls.reload))) {}

  std::shared_ptr<grpc::ServerCredentials> ForServer() const override {
    tls_api::TlsServerCredentialsOptions options(files_);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.set_certificate_verifier(std::make_shared<tls_api::NoOpCertificateVerifier>());
    return tls_api::TlsServerCredentials(options);
  }

  std::shared_ptr<grpc::ChannelCredentials> ForChannel(
      std::shared_ptr<ServerRefusal> refusal) const override {
    tls_api::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(files_);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_verify_server_certs(true);
    options.set_check_call_host(false);
    options.set_certificate_verifier(
        tls_api::ExternalCertificateVerifier::Create<JobVerifier>(job_, std::move(refusal)));
    return tls_api::TlsCredentials(options);
  }

  absl::Status CheckClient(const grpc::CallbackServerContext& context) const override {
    const auto auth = context.auth_context();
    if (!auth || !auth->IsPeerAuthenticated()) {
      return absl::UnauthenticatedError("the caller shows no certificate");
    }
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      uris.push_back(ToString(uri));
    }
    const absl::Status status = CheckUris(uris, job_, "caller");
    return status.ok() ? CheckSaidJob(context, job_) : status;
  }

 private:
  const std::string job_;
  const std::shared_ptr<tls_api::FileWatcherCertificateProvider> files_;  // gRPC shares it
};

}  // namespace

void ServerRefusal::Set(absl::Status why) {
  const std::lock_guard lock(mutex_);
  why_ = std::move(why);
}

absl::Status ServerRefusal::Get() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

std::string GrpcJobUri(const std::string& job) { return "unreft://job/" + job; }

absl::StatusOr<std::unique_ptr<GrpcIdentity>> GrpcIdentity::Create(const std::string& job,
                                                                   const GrpcTlsOptions& tls) {
  if (!tls.enabled) return std::make_unique<PlainIdentity>(job);
  if (absl::Status status = tls_files::Check(job, tls); !status.ok()) return status;
  if (Seconds(tls.reload) < 1) {
    return absl::InvalidArgumentError("the interval at which TLS files are read is below 1 s");
  }
  return std::make_unique<TlsIdentity>(job, tls);
}

}  // namespace unreft
