// heldout's viewer, made of b3cf18c45076916c047bd39c3cdb7f1c60daaa4ce3cfedb272d10435d5ac0c2e; with preact, htm, marked and diff, whose licences are in vendor/
(()=>{var Z=class extends Error{constructor(t,n){super(t.error),this.hint=t.hint||"",this.at=t.at,this.kind=t.kind||"",this.kinds=t.kinds||[],this.status=n}};var ut=/(-)?(?:("(?:[^"\\]|\\.)*"|[^\s:=<>!"]+)(:|<=|>=|!=|=|<|>))?("(?:[^"\\]|\\.)*"|[^\s"]+)/suy,os=/^-?[^\s:=<>!]+(?::|<=|>=|!=|=|<|>)$/u,rs=/^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i,Ot=["passed","failed","errored","truncated"],ls=["id","error","ground_truth","extracted"],as=["text","answer"],is={":":(e,t)=>e===t,"=":(e,t)=>e===t,"!=":(e,t)=>e!==t,"<":(e,t)=>e<t,"<=":(e,t)=>e<=t,">":(e,t)=>e>t,">=":(e,t)=>e>=t},le=(e,t)=>new Z({error:e,kind:"filter",at:t},400);function je(e){let t=[],n=0,s=0,o=null;for(;n<e.length;){if(/\s/.test(e[n])){n++;continue}ut.lastIndex=n;let r=ut.exec(e),a=ut.lastIndex;if(!r||a<e.length&&!/\s/.test(e[a]))throw le(`cannot read '${e.slice(n,n+40)}': close the quotes`,n);if(r[0]==="OR"){if(o!==null||!t.length)throw le("OR stands between two terms",n);o=n,s++,n=a;continue}if(os.test(r[0]))throw le(`${r[0]} has no value`,n);let[,c,i="text",p=":",u]=r,m={field:Nt(i),op:p,value:Nt(u),negated:c==="-"};t.push({...m,start:n,group:s}),o=null,n=a}if(o!==null)throw le("OR stands between two terms",o);return t}function Nt(e){if(!e.startsWith('"'))return e;try{return String(JSON.parse(e))}catch{return e.slice(1,-1).replace(/\\(.)/gsu,"$1")}}function jt(e,t){return e.length?e.every(n=>t.includes(n.field))?"metadata":"outcome":"all"}function De(e,t,n){let s=(d,$)=>{let h=Object.hasOwn(e.fields,d)?e.fields[d]:void 0;if(h===void 0)throw le(`the exported file has no column '${d}'`,$);return e.columns[h]},o=[];for(let d of t){if(as.includes(d.field)&&(d.field==="text"||!Object.hasOwn(e.fields,d.field)))throw le("an exported file has no search of conversations; `heldout view` has",d.start);let $=cs(d,s(d.field,d.start));o[d.group]??=[],o[d.group].push(d.negated?h=>!$(h):$)}let r=d=>!o.length||o.some($=>$.every(h=>h(d))),a=[];for(let d=0;d<e.of;d++)r(d)&&a.push(d);if(!n)return a;let{numbers:c,codes:i}=s(n.replace(/^-/,""),0),p=c?d=>c[d]:d=>i[d]<0?null:i[d],u=n.startsWith("-")?-1:1,m=(d,$)=>d===$?0:d===null?1:$===null?-1:d<$?-u:u;return a.sort((d,$)=>m(p(d),p($)))}function cs(e,{numbers:t,codes:n,values:s}){let{field:o,op:r,value:a,start:c}=e;if(t){let m=us(e);return d=>t[d]!==null&&m(t[d])}if(!(r===":"||r==="="||r==="!="))throw le(`${o} has texts; compare them with : or !=`,c);let i=a.toLowerCase(),p=ls.includes(o)&&r===":",u=s.map(m=>p?m.toLowerCase().includes(i):m===a);return m=>n[m]>=0&&u[n[m]]===(r!=="!=")}function us(e){let{op:t,value:n}=e,s=/^(.*?)\.\.(.*)$/s.exec(n);if(!s||!(t===":"||t==="="||t==="!=")){let c=Rt(e);return i=>is[t](i,c)}let o=c=>Rt({...e,value:c}),r=s[1]||!s[2]?o(s[1]):-1/0,a=s[2]?o(s[2]):1/0;return c=>(r<=c&&c<=a)==(t!=="!=")}function Rt({field:e,value:t,start:n}){if(Ot.includes(e)&&(t==="yes"||t==="no"))return+(t==="yes");let s=t.trim().replace(/(?<=\d)_(?=\d)/g,""),o=/^([+-]?)inf(?:inity)?$/i.exec(s);if(o)return o[1]==="-"?-1/0:1/0;if(rs.test(s))return Number(s);let r=Ot.includes(e)?"yes or no":"a number";throw le(`${e} is compared with ${r}, got '${t}'`,n)}var $e=null,R=()=>$e!==null;async function Dt(e){let t=Uint8Array.from(atob(e.textContent.trim()),s=>s.charCodeAt(0)),n=new Blob([t]).stream().pipeThrough(new DecompressionStream("gzip"));$e=JSON.parse(await new Response(n).text())}function It(e,t,n){if(e==="rows")return ds($e[`rows
name=${t.name}`],t);if(e==="pairs")return ps($e[`pairs
a=${t.a}
b=${t.b}`],t);if(e==="position")return $s($e[`rows
name=${t.name}`],t);let s=$e[[e,...n.map(o=>o.join("="))].join(`
`)];if(s===void 0)throw Ie();return e==="sample"?{...s,tools:$e[s.tools]||[]}:s}function Ie(){let e="`heldout view` shows all of it.";return new Z({error:"This is not in the exported file.",hint:e},404)}function ps(e,{where:t="",sort:n="",offset:s=0,limit:o=100}){if(!e)throw Ie();let r=De(e,je(t),n),a=r.slice(s,s+o).map(c=>e.rows[c]);return{...e,total:r.length,rows:a}}function ds(e,{where:t="",sort:n="",offset:s=0,limit:o=100}){if(!e)throw Ie();let r=je(t),a=De(e,r,n),c=p=>{let{numbers:u}=e.columns[p];return a.reduce((m,d)=>m+u[d],0)},i=jt(r,e.inputs);return{...e,total:a.length,picked:i,mean:i==="all"?e.mean:null,counts:{failed:c("failed"),errored:c("errored"),truncated:c("truncated")},rows:a.slice(s,s+o).map(p=>e.rows[p])}}function $s(e,{where:t="",sort:n="",id:s,repeat:o=0}){if(!e)throw Ie();let r=De(e,je(t),n).map(i=>e.rows[i]),a=r.findIndex(i=>i.id===s&&i.repeat===Number(o)),c=i=>r[i]&&{at:i,id:r[i].id,repeat:r[i].repeat};return{at:a<0?null:a,total:r.length,previous:c(a<0?-1:a-1),next:c(a+1)}}var Be="heldout-token",fs=4e4,G={works(){try{return localStorage!==null}catch{return!1}},get(e){try{return localStorage.getItem(e)}catch{return null}},set(e,t){try{localStorage.setItem(e,t)}catch{}}};async function Bt(){let e=/^#(token|code)=([\w-]+)(.*)$/.exec(location.hash);if(!e)return;let t=e[3]||"/runs";if(history.replaceState(history.state,"",`${location.pathname}${location.search}#${t}`),e[1]==="token"){G.set(Be,e[2]);return}let n=await fetch("api/token",{headers:{Authorization:`Code ${e[2]}`}});n.ok&&G.set(Be,(await n.json()).token)}function Ht(e){let t=n=>n.key===Be&&e();return addEventListener("storage",t),()=>removeEventListener("storage",t)}function Ft(e){let t=s=>s!=null&&s!==""&&s!==0,n=Object.entries(e).filter(([,s])=>t(s));return n.sort(([s],[o])=>s<o?-1:s>o?1:0),n.flatMap(([s,o])=>[o].flat().map(r=>[s,String(r)]))}function Me(e,t={}){let n=new URLSearchParams(Ft(t)).toString();return n?`${e}?${n}`:e}function He(){let e=G.get(Be);return e?{Authorization:`Bearer ${e}`}:{}}async function te(e,t={},n=void 0){return R()?It(e,t,Ft(t)):Ut(fetch(`api/${Me(e,t)}`,{headers:He(),signal:n}))}async function Ut(e){let t;try{t=await e}catch(s){if(s.name==="AbortError")throw s;let o="Is `heldout view` still running?";throw new Z({error:"The server does not answer.",hint:o,kind:"gone"},0)}if(t.ok)return t.json();let n=await t.json().catch(()=>({error:`HTTP ${t.status}`}));throw new Z(n,t.status)}async function qt(e,t){let n=await fetch(`api/${Me(e,t)}`,{headers:He()});if(n.ok)return n.blob();throw new Z(await n.json(),n.status)}async function Wt(e,t){let n={method:"POST",body:JSON.stringify(t)},s={"Content-Type":"application/json"};return Ut(fetch(`api/${e}`,{...n,headers:{...He(),...s}}))}function Fe(e,t,n,s){if(R())return()=>{};let o=new AbortController,r=1e3;async function a(p){let u=new AbortController,m,d=()=>{clearTimeout(m),m=setTimeout(()=>u.abort(new Error("silent")),fs)};d();let $=await fetch(`api/${Me("events",{name:e})}`,{headers:{...He(),...t?{"Last-Event-ID":t}:{}},signal:AbortSignal.any([p,u.signal])});if(!$.ok||!$.body)throw new Error(String($.status));s("live"),r=1e3;let h=$.body.pipeThrough(new TextDecoderStream).getReader(),w="";for(;;){let{value:f,done:v}=await h.read();if(d(),v)return;w+=f;let _=w.split(`

`);w=_.pop();for(let S of _){let b=M=>(new RegExp(`^${M}: ?(.*)$`,"m").exec(S)||[])[1];t=b("id")??t;let y=b("data");y!==void 0&&n(b("event")||"message",JSON.parse(y))}}}async function c(p){for(;!p.aborted;){if(await a(p).catch(()=>{}),p.aborted)return;s("lost"),await new Promise(u=>setTimeout(u,r)),r=Math.min(r*2,15e3)}}function i(){o.abort(),o=new AbortController,document.hidden?s("paused"):c(o.signal)}return document.addEventListener("visibilitychange",i),document.hidden||c(o.signal),()=>{o.abort(),document.removeEventListener("visibilitychange",i)}}var Je,T,on,Te,rn,Kt,hs,Ke={},ln=[],gs=/acit|ex(?:s|g|n|p|$)|rph|grid|ows|mnc|ntw|ine[ch]|zoo|^ord|itera/i;function ae(e,t){for(var n in t)e[n]=t[n];return e}function an(e){var t=e.parentNode;t&&t.removeChild(e)}function cn(e,t,n){var s,o,r,a={};for(r in t)r=="key"?s=t[r]:r=="ref"?o=t[r]:a[r]=t[r];if(arguments.length>2&&(a.children=arguments.length>3?Je.call(arguments,2):n),typeof e=="function"&&e.defaultProps!=null)for(r in e.defaultProps)a[r]===void 0&&(a[r]=e.defaultProps[r]);return qe(e,a,s,o,null)}function qe(e,t,n,s,o){var r={type:e,props:t,key:n,ref:s,__k:null,__:null,__b:0,__e:null,__d:void 0,__c:null,__h:null,constructor:void 0,__v:o??++on};return T.vnode!=null&&T.vnode(r),r}function Ve(e){return e.children}function ee(e,t){this.props=e,this.context=t}function he(e,t){if(t==null)return e.__?he(e.__,e.__.__k.indexOf(e)+1):null;for(var n;t<e.__k.length;t++)if((n=e.__k[t])!=null&&n.__e!=null)return n.__e;return typeof e.type=="function"?he(e):null}function un(e){var t,n;if((e=e.__)!=null&&e.__c!=null){for(e.__e=e.__c.base=null,t=0;t<e.__k.length;t++)if((n=e.__k[t])!=null&&n.__e!=null){e.__e=e.__c.base=n.__e;break}return un(e)}}function Gt(e){(!e.__d&&(e.__d=!0)&&Te.push(e)&&!Ge.__r++||Kt!==T.debounceRendering)&&((Kt=T.debounceRendering)||rn)(Ge)}function Ge(){for(var e;Ge.__r=Te.length;)e=Te.sort(function(t,n){return t.__v.__b-n.__v.__b}),Te=[],e.some(function(t){var n,s,o,r,a,c;t.__d&&(a=(r=(n=t).__v).__e,(c=n.__P)&&(s=[],(o=ae({},r)).__v=r.__v+1,$t(c,r,o,n.__n,c.ownerSVGElement!==void 0,r.__h!=null?[a]:null,s,a??he(r),r.__h),mn(s,r),r.__e!=a&&un(r)))})}function pn(e,t,n,s,o,r,a,c,i,p){var u,m,d,$,h,w,f,v=s&&s.__k||ln,_=v.length;for(n.__k=[],u=0;u<t.length;u++)if(($=n.__k[u]=($=t[u])==null||typeof $=="boolean"?null:typeof $=="string"||typeof $=="number"||typeof $=="bigint"?qe(null,$,null,null,$):Array.isArray($)?qe(Ve,{children:$},null,null,null):$.__b>0?qe($.type,$.props,$.key,null,$.__v):$)!=null){if($.__=n,$.__b=n.__b+1,(d=v[u])===null||d&&$.key==d.key&&$.type===d.type)v[u]=void 0;else for(m=0;m<_;m++){if((d=v[m])&&$.key==d.key&&$.type===d.type){v[m]=void 0;break}d=null}$t(e,$,d=d||Ke,o,r,a,c,i,p),h=$.__e,(m=$.ref)&&d.ref!=m&&(f||(f=[]),d.ref&&f.push(d.ref,null,$),f.push(m,$.__c||h,$)),h!=null?(w==null&&(w=h),typeof $.type=="function"&&$.__k!=null&&$.__k===d.__k?$.__d=i=dn($,i,e):i=$n(e,$,d,v,h,i),p||n.type!=="option"?typeof n.type=="function"&&(n.__d=i):e.value=""):i&&d.__e==i&&i.parentNode!=e&&(i=he(d))}for(n.__e=w,u=_;u--;)v[u]!=null&&(typeof n.type=="function"&&v[u].__e!=null&&v[u].__e==n.__d&&(n.__d=he(s,u+1)),hn(v[u],v[u]));if(f)for(u=0;u<f.length;u++)fn(f[u],f[++u],f[++u])}function dn(e,t,n){var s,o;for(s=0;s<e.__k.length;s++)(o=e.__k[s])&&(o.__=e,t=typeof o.type=="function"?dn(o,t,n):$n(n,o,o,e.__k,o.__e,t));return t}function $n(e,t,n,s,o,r){var a,c,i;if(t.__d!==void 0)a=t.__d,t.__d=void 0;else if(n==null||o!=r||o.parentNode==null)e:if(r==null||r.parentNode!==e)e.appendChild(o),a=null;else{for(c=r,i=0;(c=c.nextSibling)&&i<s.length;i+=2)if(c==o)break e;e.insertBefore(o,r),a=r}return a!==void 0?a:o.nextSibling}function zt(e,t,n){t[0]==="-"?e.setProperty(t,n):e[t]=n==null?"":typeof n!="number"||gs.test(t)?n:n+"px"}function Ue(e,t,n,s,o){var r;e:if(t==="style")if(typeof n=="string")e.style.cssText=n;else{if(typeof s=="string"&&(e.style.cssText=s=""),s)for(t in s)n&&t in n||zt(e.style,t,"");if(n)for(t in n)s&&n[t]===s[t]||zt(e.style,t,n[t])}else if(t[0]==="o"&&t[1]==="n")r=t!==(t=t.replace(/Capture$/,"")),t=t.toLowerCase()in e?t.toLowerCase().slice(2):t.slice(2),e.l||(e.l={}),e.l[t+r]=n,n?s||e.addEventListener(t,r?Vt:Jt,r):e.removeEventListener(t,r?Vt:Jt,r);else if(t!=="dangerouslySetInnerHTML"){if(o)t=t.replace(/xlink[H:h]/,"h").replace(/sName$/,"s");else if(t!=="href"&&t!=="list"&&t!=="form"&&t!=="tabIndex"&&t!=="download"&&t in e)try{e[t]=n??"";break e}catch{}typeof n=="function"||(n!=null&&(n!==!1||t[0]==="a"&&t[1]==="r")?e.setAttribute(t,n):e.removeAttribute(t))}}function Jt(e){this.l[e.type+!1](T.event?T.event(e):e)}function Vt(e){this.l[e.type+!0](T.event?T.event(e):e)}function $t(e,t,n,s,o,r,a,c,i){var p,u,m,d,$,h,w,f,v,_,S,b=t.type;if(t.constructor!==void 0)return null;n.__h!=null&&(i=n.__h,c=t.__e=n.__e,t.__h=null,r=[c]),(p=T.__b)&&p(t);try{e:if(typeof b=="function"){if(f=t.props,v=(p=b.contextType)&&s[p.__c],_=p?v?v.props.value:p.__:s,n.__c?w=(u=t.__c=n.__c).__=u.__E:("prototype"in b&&b.prototype.render?t.__c=u=new b(f,_):(t.__c=u=new ee(f,_),u.constructor=b,u.render=bs),v&&v.sub(u),u.props=f,u.state||(u.state={}),u.context=_,u.__n=s,m=u.__d=!0,u.__h=[]),u.__s==null&&(u.__s=u.state),b.getDerivedStateFromProps!=null&&(u.__s==u.state&&(u.__s=ae({},u.__s)),ae(u.__s,b.getDerivedStateFromProps(f,u.__s))),d=u.props,$=u.state,m)b.getDerivedStateFromProps==null&&u.componentWillMount!=null&&u.componentWillMount(),u.componentDidMount!=null&&u.__h.push(u.componentDidMount);else{if(b.getDerivedStateFromProps==null&&f!==d&&u.componentWillReceiveProps!=null&&u.componentWillReceiveProps(f,_),!u.__e&&u.shouldComponentUpdate!=null&&u.shouldComponentUpdate(f,u.__s,_)===!1||t.__v===n.__v){u.props=f,u.state=u.__s,t.__v!==n.__v&&(u.__d=!1),u.__v=t,t.__e=n.__e,t.__k=n.__k,t.__k.forEach(function(y){y&&(y.__=t)}),u.__h.length&&a.push(u);break e}u.componentWillUpdate!=null&&u.componentWillUpdate(f,u.__s,_),u.componentDidUpdate!=null&&u.__h.push(function(){u.componentDidUpdate(d,$,h)})}u.context=_,u.props=f,u.state=u.__s,(p=T.__r)&&p(t),u.__d=!1,u.__v=t,u.__P=e,p=u.render(u.props,u.state,u.context),u.state=u.__s,u.getChildContext!=null&&(s=ae(ae({},s),u.getChildContext())),m||u.getSnapshotBeforeUpdate==null||(h=u.getSnapshotBeforeUpdate(d,$)),S=p!=null&&p.type===Ve&&p.key==null?p.props.children:p,pn(e,Array.isArray(S)?S:[S],t,n,s,o,r,a,c,i),u.base=t.__e,t.__h=null,u.__h.length&&a.push(u),w&&(u.__E=u.__=null),u.__e=!1}else r==null&&t.__v===n.__v?(t.__k=n.__k,t.__e=n.__e):t.__e=vs(n.__e,t,n,s,o,r,a,i);(p=T.diffed)&&p(t)}catch(y){t.__v=null,(i||r!=null)&&(t.__e=c,t.__h=!!i,r[r.indexOf(c)]=null),T.__e(y,t,n)}}function mn(e,t){T.__c&&T.__c(t,e),e.some(function(n){try{e=n.__h,n.__h=[],e.some(function(s){s.call(n)})}catch(s){T.__e(s,n.__v)}})}function vs(e,t,n,s,o,r,a,c){var i,p,u,m=n.props,d=t.props,$=t.type,h=0;if($==="svg"&&(o=!0),r!=null){for(;h<r.length;h++)if((i=r[h])&&(i===e||($?i.localName==$:i.nodeType==3))){e=i,r[h]=null;break}}if(e==null){if($===null)return document.createTextNode(d);e=o?document.createElementNS("http://www.w3.org/2000/svg",$):document.createElement($,d.is&&d),r=null,c=!1}if($===null)m===d||c&&e.data===d||(e.data=d);else{if(r=r&&Je.call(e.childNodes),p=(m=n.props||Ke).dangerouslySetInnerHTML,u=d.dangerouslySetInnerHTML,!c){if(r!=null)for(m={},h=0;h<e.attributes.length;h++)m[e.attributes[h].name]=e.attributes[h].value;(u||p)&&(u&&(p&&u.__html==p.__html||u.__html===e.innerHTML)||(e.innerHTML=u&&u.__html||""))}if((function(w,f,v,_,S){var b;for(b in v)b==="children"||b==="key"||b in f||Ue(w,b,null,v[b],_);for(b in f)S&&typeof f[b]!="function"||b==="children"||b==="key"||b==="value"||b==="checked"||v[b]===f[b]||Ue(w,b,f[b],v[b],_)})(e,d,m,o,c),u)t.__k=[];else if(h=t.props.children,pn(e,Array.isArray(h)?h:[h],t,n,s,o&&$!=="foreignObject",r,a,r?r[0]:n.__k&&he(n,0),c),r!=null)for(h=r.length;h--;)r[h]!=null&&an(r[h]);c||("value"in d&&(h=d.value)!==void 0&&(h!==e.value||$==="progress"&&!h)&&Ue(e,"value",h,m.value,!1),"checked"in d&&(h=d.checked)!==void 0&&h!==e.checked&&Ue(e,"checked",h,m.checked,!1))}return e}function fn(e,t,n){try{typeof e=="function"?e(t):e.current=t}catch(s){T.__e(s,n)}}function hn(e,t,n){var s,o;if(T.unmount&&T.unmount(e),(s=e.ref)&&(s.current&&s.current!==e.__e||fn(s,null,t)),(s=e.__c)!=null){if(s.componentWillUnmount)try{s.componentWillUnmount()}catch(r){T.__e(r,t)}s.base=s.__P=null}if(s=e.__k)for(o=0;o<s.length;o++)s[o]&&hn(s[o],t,typeof e.type!="function");n||e.__e==null||an(e.__e),e.__e=e.__d=void 0}function bs(e,t,n){return this.constructor(e,n)}function gn(e,t,n){var s,o,r;T.__&&T.__(e,t),o=(s=typeof n=="function")?null:n&&n.__k||t.__k,r=[],$t(t,e=(!s&&n||t).__k=cn(Ve,null,[e]),o||Ke,Ke,t.ownerSVGElement!==void 0,!s&&n?[n]:o?null:t.firstChild?Je.call(t.childNodes):null,r,!s&&n?n:o?o.__e:t.firstChild,s),mn(r,e)}Je=ln.slice,T={__e:function(e,t){for(var n,s,o;t=t.__;)if((n=t.__c)&&!n.__)try{if((s=n.constructor)&&s.getDerivedStateFromError!=null&&(n.setState(s.getDerivedStateFromError(e)),o=n.__d),n.componentDidCatch!=null&&(n.componentDidCatch(e),o=n.__d),o)return n.__E=n}catch(r){e=r}throw e}},on=0,ee.prototype.setState=function(e,t){var n;n=this.__s!=null&&this.__s!==this.state?this.__s:this.__s=ae({},this.state),typeof e=="function"&&(e=e(ae({},n),this.props)),e&&ae(n,e),e!=null&&this.__v&&(t&&this.__h.push(t),Gt(this))},ee.prototype.forceUpdate=function(e){this.__v&&(this.__e=!0,e&&this.__h.push(e),Gt(this))},ee.prototype.render=Ve,Te=[],rn=typeof Promise=="function"?Promise.prototype.then.bind(Promise.resolve()):setTimeout,Ge.__r=0,hs=0;var Ae,z,Yt,ze=0,pt=[],Qt=T.__b,Xt=T.__r,Zt=T.diffed,en=T.__c,tn=T.unmount;function Ye(e,t){T.__h&&T.__h(z,e,ze||t),ze=0;var n=z.__H||(z.__H={__:[],__h:[]});return e>=n.__.length&&n.__.push({}),n.__[e]}function N(e){return ze=1,ge(bn,e)}function ge(e,t,n){var s=Ye(Ae++,2);return s.t=e,s.__c||(s.__=[n?n(t):bn(void 0,t),function(o){var r=s.t(s.__[0],o);s.__[0]!==r&&(s.__=[r,s.__[1]],s.__c.setState({}))}],s.__c=z),s.__}function q(e,t){var n=Ye(Ae++,3);!T.__s&&mt(n.__H,t)&&(n.__=e,n.__H=t,z.__H.__h.push(n))}function vn(e,t){var n=Ye(Ae++,4);!T.__s&&mt(n.__H,t)&&(n.__=e,n.__H=t,z.__h.push(n))}function Q(e){return ze=5,ws(function(){return{current:e}},[])}function ws(e,t){var n=Ye(Ae++,7);return mt(n.__H,t)&&(n.__=e(),n.__H=t,n.__h=e),n.__}function _s(){pt.forEach(function(e){if(e.__P)try{e.__H.__h.forEach(We),e.__H.__h.forEach(dt),e.__H.__h=[]}catch(t){e.__H.__h=[],T.__e(t,e.__v)}}),pt=[]}T.__b=function(e){z=null,Qt&&Qt(e)},T.__r=function(e){Xt&&Xt(e),Ae=0;var t=(z=e.__c).__H;t&&(t.__h.forEach(We),t.__h.forEach(dt),t.__h=[])},T.diffed=function(e){Zt&&Zt(e);var t=e.__c;t&&t.__H&&t.__H.__h.length&&(pt.push(t)!==1&&Yt===T.requestAnimationFrame||((Yt=T.requestAnimationFrame)||function(n){var s,o=function(){clearTimeout(r),nn&&cancelAnimationFrame(s),setTimeout(n)},r=setTimeout(o,100);nn&&(s=requestAnimationFrame(o))})(_s)),z=void 0},T.__c=function(e,t){t.some(function(n){try{n.__h.forEach(We),n.__h=n.__h.filter(function(s){return!s.__||dt(s)})}catch(s){t.some(function(o){o.__h&&(o.__h=[])}),t=[],T.__e(s,n.__v)}}),en&&en(e,t)},T.unmount=function(e){tn&&tn(e);var t=e.__c;if(t&&t.__H)try{t.__H.__.forEach(We)}catch(n){T.__e(n,t.__v)}};var nn=typeof requestAnimationFrame=="function";function We(e){var t=z;typeof e.__c=="function"&&e.__c(),z=t}function dt(e){var t=z;e.__c=e.__(),z=t}function mt(e,t){return!e||e.length!==t.length||t.some(function(n,s){return n!==e[s]})}function bn(e,t){return typeof t=="function"?t(e):t}var wn=function(e,t,n,s){var o;t[0]=0;for(var r=1;r<t.length;r++){var a=t[r++],c=t[r]?(t[0]|=a?1:2,n[t[r++]]):t[++r];a===3?s[0]=c:a===4?s[1]=Object.assign(s[1]||{},c):a===5?(s[1]=s[1]||{})[t[++r]]=c:a===6?s[1][t[++r]]+=c+"":a?(o=e.apply(c,wn(e,c,n,["",null])),s.push(o),c[0]?t[0]|=2:(t[r-2]=0,t[r]=o)):s.push(c)}return s},sn=new Map,l=function(e){var t=sn.get(this);return t||(t=new Map,sn.set(this,t)),(t=wn(this,t.get(e)||(t.set(e,t=(function(n){for(var s,o,r=1,a="",c="",i=[0],p=function(d){r===1&&(d||(a=a.replace(/^\s*\n\s*|\s*\n\s*$/g,"")))?i.push(0,d,a):r===3&&(d||a)?(i.push(3,d,a),r=2):r===2&&a==="..."&&d?i.push(4,d,0):r===2&&a&&!d?i.push(5,0,!0,a):r>=5&&((a||!d&&r===5)&&(i.push(r,0,a,o),r=6),d&&(i.push(r,d,0,o),r=6)),a=""},u=0;u<n.length;u++){u&&(r===1&&p(),p(u));for(var m=0;m<n[u].length;m++)s=n[u][m],r===1?s==="<"?(p(),i=[i],r=3):a+=s:r===4?a==="--"&&s===">"?(r=1,a=""):a=s+a[0]:c?s===c?c="":a+=s:s==='"'||s==="'"?c=s:s===">"?(p(),r=1):r&&(s==="="?(r=5,o=a,a=""):s==="/"&&(r<5||n[u][m+1]===">")?(p(),r===3&&(i=i[0]),r=i,(i=i[0]).push(2,0,r),r=0):s===" "||s==="	"||s===`
`||s==="\r"?(p(),r=2):a+=s),r===3&&a==="!--"&&(r=4,i=i[0])}return p(),i})(e)),t),arguments,[])).length>1?t:t[0]}.bind(cn);var K=e=>e!=null;function Le(e,t,n=5){let s=t-e;if(!(s>0))return[e];let o=s/n,r=10**Math.floor(Math.log10(o)),a=[1,2,5,10].map(i=>i*r).find(i=>i>=o),c=[];for(let i=Math.ceil(e/a-1e-9);i*a<=t+a*1e-9;i++)c.push(Number((i*a).toPrecision(12)));return c}var ve=(e,t=!1)=>(t&&e>0?"+":"")+String(Number(e.toPrecision(6))).replace(/^-0$/,"0"),ft=e=>Math.max(300,Math.min(e,document.documentElement.clientWidth-40)),ie=(e,t,n,s)=>o=>n+(o-e)/(t-e||1)*(s-n),ht=(e,t,n,s)=>[...e.map(o=>`${t(o)},${s(o)}`),...e.map(o=>`${t(o)},${n(o)}`).reverse()].join(" ");function _n({value:e,low:t,high:n,second:s=null,from:o=0,to:r=1}){if(!K(e))return null;let a=ie(o,r,2,118),c=i=>Math.max(2,Math.min(118,a(i)));return l`<svg class="bar" viewBox="0 0 120 14" width="100" height="14" aria-hidden="true">
    <line class="axis" x1="2" x2="118" y1="7" y2="7" />
    ${K(t)?l`<line class="whisker" x1=${c(t)} x2=${c(n)} y1="7" y2="7" />`:null}
    ${K(s)?l`<circle class="dot hollow" cx=${c(s)} cy="7" r="3">
            <title>without errored items</title></circle>`:null}
    <circle class="dot" cx=${c(e)} cy="7" r="3" />
  </svg>`}function be({rows:e,at:t=null,detectable:n=null,sign:s=!1}){let o=e.flatMap($=>[$.value,$.low,$.high,$.second]).filter(K);if(t!==null&&o.push(t),n!==null&&o.push(n,-n),!o.length)return null;let[r,a]=[Math.min(...o),Math.max(...o)],c=(a-r||.1)*.06,i=ft(720),p=i<500?96:150,u=e.length*24+34,m=ie(r-c,a+c,p,i-12),d=($,h)=>l`<line class=${$} x1=${m(h)} x2=${m(h)} y1="6" y2=${u-24} />`;return l`<svg class="forest" viewBox="0 0 ${i} ${u}" width=${i} aria-hidden="true">
    ${Le(r-c,a+c,i<500?3:5).map($=>l`${d("rule",$)}
        <text class="tick" x=${m($)} y=${u-8} text-anchor="middle">${ve($,s)}</text>`)}
    ${n===null?null:l`<rect class="undetected" x=${m(-n)} width=${m(n)-m(-n)} y="6"
            height=${u-30}>
            <title>smaller true differences are detected with less than 80% power</title></rect>`}
    ${t===null?null:d("zero",t)}
    ${e.map(($,h)=>l`<${ys} row=${$} x=${m} y=${18+h*24} left=${p} />`)}
  </svg>`}function ys({row:e,x:t,y:n,left:s}){let o=e.strong?"strong":"",r=s/7,a=e.label.length>r?`${e.label.slice(0,r-1)}\u2026`:e.label,{value:c,low:i,high:p,second:u}=e,m=o?5:4;return l`<text class="label ${o}" x=${s-10} y=${n+4} text-anchor="end">${a}</text>
    ${K(i)?l`<line class="whisker" x1=${t(i)} x2=${t(p)} y1=${n} y2=${n} />`:null}
    ${K(u)?l`<circle class="dot hollow" cx=${t(u)} cy=${n} r="4" />`:null}
    ${K(c)?l`<circle class="dot ${o}" cx=${t(c)} cy=${n} r=${m} />`:null}`}function yn({histogram:e}){let{edges:t,counts:n}=e,s=Math.max(...n,1),o=ie(t[0],t.at(-1),10,390);return l`<svg class="histogram" viewBox="0 0 400 120" aria-hidden="true">
    ${n.map((r,a)=>{let c=r/s*86,[i,p]=[t[a],t[a+1]];return l`<rect class="column" x=${o(i)+.5} width=${Math.max(1,o(p)-o(i)-1)}
        y=${96-c} height=${c}><title>${ve(i)} to ${ve(p)}: ${r}</title></rect>`})}
    <line class="axis" x1="10" x2="390" y1="96" y2="96" />
    ${Le(t[0],t.at(-1)).map(r=>l`<text class="tick" x=${o(r)} y="112" text-anchor="middle">${ve(r)}</text>`)}
  </svg>`}function xn({points:e}){if(!e||e.length<2)return null;let t=e.map(([p])=>p),n=([,p,u])=>u??p,s=([,p,,u])=>u??p,o=e.flatMap(p=>[p[1],n(p),s(p)]),r=ie(Math.min(...t),Math.max(...t),2,118),a=ie(Math.min(...o),Math.max(...o),20,3),c=([p])=>r(p),i=ht(e,c,p=>a(n(p)),p=>a(s(p)));return l`<svg class="spark" viewBox="0 0 120 23" width="100" height="23" aria-hidden="true">
    <polygon class="band" points=${i} />
    <polyline class="mean" points=${e.map(p=>`${c(p)},${a(p[1])}`).join(" ")} />
  </svg>`}function kn({parts:e}){let t=e.reduce((s,[,o])=>s+o,0),n=e.reduce((s,[o,r])=>s+o*r,0);return l`<div class="tally" aria-hidden="true">${e.map(([s,o])=>l`<span class=${s?"own":"ties"} style=${{flexGrow:o}}></span>`)}</div>
    <span class="soft">${n} of the model, ${t-n} of the environment</span>`}var Pe=class{diff(t,n,s={}){let o;typeof s=="function"?(o=s,s={}):"callback"in s&&(o=s.callback);let r=this.castInput(t,s),a=this.castInput(n,s),c=this.removeEmpty(this.tokenize(r,s)),i=this.removeEmpty(this.tokenize(a,s));return this.diffWithOptionsObj(c,i,s,o)}diffWithOptionsObj(t,n,s,o){var r;let a=_=>{if(_=this.postProcess(_,s),o){setTimeout(function(){o(_)},0);return}else return _},c=n.length,i=t.length,p=1,u=c+i;s.maxEditLength!=null&&(u=Math.min(u,s.maxEditLength));let m=(r=s.timeout)!==null&&r!==void 0?r:1/0,d=Date.now()+m,$=[{oldPos:-1,lastComponent:void 0}],h=this.extractCommon($[0],n,t,0,s);if($[0].oldPos+1>=i&&h+1>=c)return a(this.buildValues($[0].lastComponent,n,t));let w=-1/0,f=1/0,v=()=>{for(let _=Math.max(w,-p);_<=Math.min(f,p);_+=2){let S,b=$[_-1],y=$[_+1];b&&($[_-1]=void 0);let M=!1;if(y){let A=y.oldPos-_;M=y&&0<=A&&A<c}let E=b&&b.oldPos+1<i;if(!M&&!E){$[_]=void 0;continue}if(!E||M&&b.oldPos<y.oldPos?S=this.addToPath(y,!0,!1,0,s):S=this.addToPath(b,!1,!0,1,s),h=this.extractCommon(S,n,t,_,s),S.oldPos+1>=i&&h+1>=c)return a(this.buildValues(S.lastComponent,n,t))||!0;$[_]=S,S.oldPos+1>=i&&(f=Math.min(f,_-1)),h+1>=c&&(w=Math.max(w,_+1))}p++};if(o)(function _(){setTimeout(function(){if(p>u||Date.now()>d)return o(void 0);v()||_()},0)})();else for(;p<=u&&Date.now()<=d;){let _=v();if(_)return _}}addToPath(t,n,s,o,r){let a=t.lastComponent;return a&&!r.oneChangePerToken&&a.added===n&&a.removed===s?{oldPos:t.oldPos+o,lastComponent:{count:a.count+1,added:n,removed:s,previousComponent:a.previousComponent}}:{oldPos:t.oldPos+o,lastComponent:{count:1,added:n,removed:s,previousComponent:a}}}extractCommon(t,n,s,o,r){let a=n.length,c=s.length,i=t.oldPos,p=i-o,u=0;for(;p+1<a&&i+1<c&&this.equals(s[i+1],n[p+1],r);)p++,i++,u++,r.oneChangePerToken&&(t.lastComponent={count:1,previousComponent:t.lastComponent,added:!1,removed:!1});return u&&!r.oneChangePerToken&&(t.lastComponent={count:u,previousComponent:t.lastComponent,added:!1,removed:!1}),t.oldPos=i,p}equals(t,n,s){return s.comparator?s.comparator(t,n):t===n||!!s.ignoreCase&&t.toLowerCase()===n.toLowerCase()}removeEmpty(t){let n=[];for(let s=0;s<t.length;s++)t[s]&&n.push(t[s]);return n}castInput(t,n){return t}tokenize(t,n){return Array.from(t)}join(t){return t.join("")}postProcess(t,n){return t}get useLongestToken(){return!1}buildValues(t,n,s){let o=[],r;for(;t;)o.push(t),r=t.previousComponent,delete t.previousComponent,t=r;o.reverse();let a=o.length,c=0,i=0,p=0;for(;c<a;c++){let u=o[c];if(u.removed)u.value=this.join(s.slice(p,p+u.count)),p+=u.count;else{if(!u.added&&this.useLongestToken){let m=n.slice(i,i+u.count);m=m.map(function(d,$){let h=s[p+$];return h.length>d.length?h:d}),u.value=this.join(m)}else u.value=this.join(n.slice(i,i+u.count));i+=u.count,u.added||(p+=u.count)}}return o}};var x=e=>e==null?"\u2013":e.toLocaleString("en-US");function W(e){if(e==null)return"\u2013";if(e<1)return`${Math.round(e*1e3)} ms`;if(e<60)return`${e.toFixed(1)} s`;let t=Math.round(e),[n,s]=[Math.floor(t/3600),Math.floor(t%3600/60)];return n?`${n} h ${s} min`:`${s} min ${t%60} s`}function ce(e,t=Date.now()){let n=(t-Date.parse(e))/1e3;return Number.isNaN(n)?"":n<60?"just now":n<3600?`${Math.floor(n/60)} min ago`:n<86400?`${Math.floor(n/3600)} h ago`:`${Math.floor(n/86400)} d ago`}var xs="\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\ufff9-\\ufffb",ks=new RegExp(`[${xs}\\p{Default_Ignorable_Code_Point}]`,"gu"),Ss=/\p{Extended_Pictographic}[\ufe0f\u{1f3fb}-\u{1f3ff}]*$/u,Cs=/^\p{Extended_Pictographic}/u,Sn=["Arab","Syrc","Mong","Nkoo","Deva","Beng","Guru","Gujr","Orya","Taml"].concat(["Telu","Knda","Mlym","Sinh","Khmr","Mymr","Tibt"]).map(e=>`\\p{Script_Extensions=${e}}`).join(""),Es=new RegExp(`[${Sn}]$`,"u"),Ms=new RegExp(`^[${Sn}]`,"u"),Ts=["gbeng","gbsct","gbwls"].map(e=>`\u{1F3F4}${[...e].map(t=>String.fromCodePoint(917504+t.charCodeAt(0))).join("")}\u{E007F}`);function As(e,t,n){let s=n.slice(Math.max(0,t-12),t),o=n.slice(t+e.length,t+e.length+2);if(e==="\u200D"&&Ss.test(s)&&Cs.test(o))return!0;if(e==="\u200D"||e==="\u200C")return Es.test(s)&&Ms.test(o);if(e==="\uFE0E"||e==="\uFE0F")return/\p{Extended_Pictographic}$/u.test(s)||o[0]==="\u20E3";if(e>="\u{E0000}"&&e<="\u{E007F}"){let r=n.lastIndexOf("\u{1F3F4}",t);return Ts.some(a=>n.startsWith(a,r)&&t<r+a.length)}return!1}function g(e){let t=(n,s,o)=>As(n,s,o)?n:`\u27E8U+${n.codePointAt(0).toString(16).toUpperCase().padStart(4,"0")}\u27E9`;return String(e).replace(ks,t)}function O(e,t=200){let n=g(e??"").replace(/\s+/g," ").trim();return n.length>t?`${n.slice(0,t-1)}\u2026`:n}var Ls=2e3,gt=class extends Pe{tokenize(t){return t.match(/^\s+|\S+\s*/g)||[]}};function Cn(e,t){let n=new gt().diff(e,t,{maxEditLength:Ls});return n?n.map(o=>[o.added?"new":o.removed?"gone":"same",o.value]):[["gone",e],["new",t]].filter(([,o])=>o)}var vt=e=>e!=="OR"&&/^[^\s"\\:=<>!-][^\s"\\:=<>!]*$/.test(e)?e:JSON.stringify(e);var Ps={passed:"\u2713",failed:"\u2717",errored:"!",truncated:"\u2026"},I=({outcome:e})=>l`<span class="sign ${e}" title=${e} role="img" aria-label=${e}>${Ps[e]||"\xB7"}</span>`;function bt({of:e}){let t=`${e.text.mean_scored} (${e.text.interval_scored}) without them`;return l`<span class="errored">${x(e.errors)} errored, counted as 0; ${t}</span>`}var Qe=({of:e})=>l`<span class="mean"><b>${e.text.mean}</b>
    <span class="soft">${` (${e.text.interval}), n ${x(e.n)}`}</span>
    ${e.errors?l` <${bt} of=${e} />`:""}</span>`;function En({counts:e}){let t=["passed","failed","errored"].filter(n=>e[n]);return l`<div class="outcomes">
    <div class="tally" aria-hidden="true">${t.map(n=>l`<span class=${n} style=${{flexGrow:e[n]}}></span>`)}</div>
    <p>${t.map(n=>l`<span class="count"><${I} outcome=${n} /> ${x(e[n])} ${n}</span>`)}
      ${e.truncated?l`<span class="count soft"><${I} outcome="truncated" />
              ${` ${x(e.truncated)}`} of them truncated</span>`:null}</p></div>`}var Os=e=>e!=null&&e!==""&&e!==!1,ne=({rows:e})=>l`<dl class="facts">${e.filter(([,t])=>Os(t)).map(([t,n])=>l`<div><dt>${t}</dt><dd>${n}</dd></div>`)}</dl>`,V=({blocks:e})=>e.map(t=>t.line===void 0?l`<${wt} table=${t} />`:l`<p class="note ${t.style}">${g(t.line)}</p>`);function wt({table:e,caption:t}){let n=e.columns.map(({title:s,numeric:o,wrap:r},a)=>({title:s,numeric:o,wrap:r,cell:c=>g(c[a])}));return l`<${X} caption=${t} rows=${[...e.rows,...e.totals]} columns=${n} />`}var j=({problem:e,retry:t})=>l`<div class="problem" role="alert"><p>${g(e.message)}</p>
    ${e.hint?l`<p class="soft">${g(e.hint)}</p>`:null}
    ${t?l`<button onClick=${t}>Try again</button>`:null}</div>`;function H({answer:e,view:t,refused:n}){let{data:s,problem:o,reload:r}=e;return!s&&!o?l`<p class="soft" role="status">Loading…</p>`:l`
    ${o?n?.(o)||l`<${j} problem=${o} retry=${r} />`:null}
    ${s?t(s):null}`}var Mn=({is:e})=>l`<div class="busy" role="progressbar" aria-label="searching" hidden=${!e}></div>`;function X({caption:e,columns:t,rows:n,onRow:s,label:o}){let r=c=>s?{class:"opens",tabindex:0,onClick:()=>s(c),onKeyDown:i=>i.key==="Enter"&&s(c)}:{},a=c=>c.numeric?"num":c.wrap?"wrap":"";return l`<div class="scroll" tabindex="0" role="group" aria-label=${e||o||"table"}><table>
    ${e?l`<caption>${e}</caption>`:null}
    <thead><tr>${t.map(c=>l`<th scope="col" class=${c.numeric?"num":""}>${c.title||l`<span class="hidden">name</span>`}</th>`)}</tr></thead>
    <tbody>${n.map(c=>l`<tr ...${r(c)}>${t.map(i=>l`<td class=${a(i)}>${i.cell(c)}</td>`)}</tr>`)}</tbody>
  </table></div>`}var F=({label:e,value:t,options:n,none:s,onChange:o})=>l`<label class="select">${e}${" "}
    <select value=${t} onChange=${r=>o(r.target.value)}>
      ${s===void 0?null:l`<option value="">${s}</option>`}
      ${n.map(r=>l`<option value=${r}>${r}</option>`)}
    </select></label>`;function Xe({fields:e,chosen:t,onChange:n}){let s=(o,r)=>{let a=t.filter(c=>c!==o);n(r?[...a,o]:a)};return l`<details class="chooser"><summary>columns</summary><div>${e.map(o=>l`<label><input type="checkbox" checked=${t.includes(o)}
      onChange=${r=>s(o,r.target.checked)} /> ${g(o)}</label>`)}</div></details>`}var B=({path:e})=>l`<nav class="crumbs" aria-label="where this is">${e.map(([t,n])=>l`<a href=${n}>${g(t)}</a><span aria-hidden="true">/</span>`)}</nav>`,ue=({state:e})=>e?l`<span class="live ${e}" role="status">${e}</span>`:null;var Tn=e=>e<1e6?`${Math.ceil(e/1e3)} KB`:`${(e/1e6).toFixed(1)} MB`;function we({names:e}){let[t,n]=N("failures"),[s,o]=N(null);if(R())return null;let r={name:e,samples:t},a=async()=>{o({busy:!0}),o(await te("export",r).catch(p=>({problem:p})))},c=async()=>{let p=await qt("exported",r).catch(m=>o({problem:m}));if(!p)return;let u=document.createElement("a");u.href=URL.createObjectURL(p),u.download=`${e.join("-").replace(/[^\w.@-]+/g,"_").slice(0,120)}.html`,u.click(),setTimeout(()=>URL.revokeObjectURL(u.href),6e4)};return l`<details class="export"><summary>Export as one file</summary>
    <p><${F} label="conversations" value=${t} options=${["failures","all"]}
        onChange=${p=>{n(p),o(null)}} />${" "}
      <button onClick=${a} disabled=${s?.busy}>What will be in it?</button></p>
    <div role="status">
      ${s?.busy?l`<p class="soft">Making it…</p>`:null}
      ${s?.problem?l`<${j} problem=${s.problem} />`:null}
      ${s?.names?l`<p>${`Summaries, slices, rows and notes of ${s.names.join(", ")}, and `}
                ${`${x(s.inside)} of ${x(s.whole)} conversations: ${Tn(s.bytes)}. `}
                Whoever has the file can read all of it.</p>
              <p><button onClick=${c}>Save ${Tn(s.bytes)}</button></p>`:null}</div></details>`}var An="heldout-keys-off",Ns="input, textarea, select, [contenteditable]",Rs="a[href], button, summary, [role=button], tr[tabindex]",Oe=[],Ze="",_t=()=>G.get(An)==="1",Ln=e=>G.set(An,e?"0":"1");function _e(e){return Oe.push(e),()=>Oe.splice(Oe.indexOf(e),1)}var js=(e,t)=>Object.keys(e).some(n=>n.startsWith(`${t} `));addEventListener("keydown",e=>{let{key:t,target:n}=e;if(_t()||e.ctrlKey||e.metaKey||e.altKey)return;if(n.closest?.(Ns)){t==="Escape"&&n.blur();return}if((t==="Enter"||t===" ")&&n.closest?.(Rs))return;let s=Ze?`${Ze} ${t}`:t;Ze="";let o=Oe.findLast(({current:r})=>r[s]);o?(e.preventDefault(),o.current[s](e)):Oe.some(({current:r})=>js(r,t))&&(Ze=t)});var me=location.protocol==="about:"?document.documentElement.dataset.start||"#/":null,Pn=[],Ds=()=>me??location.hash;function On(e){Pn.push(e)}function xt(){for(let e of Pn)e()}addEventListener("hashchange",()=>{xt(),Bs()});var Is=3e3,Ne=new Map,pe=0;history.scrollRestoration="manual";addEventListener("scroll",()=>Ne.set(pe,{...Ne.get(pe),top:scrollY}),{passive:!0});addEventListener("click",e=>{let t=e.target.closest?.("a")?.getAttribute("href");t&&Ne.set(pe,{...Ne.get(pe),href:t})});function Bs(){let e=history.state?.step,t=Ne.get(e);if(pe=e??Date.now(),e===void 0&&history.replaceState({step:pe},""),document.getElementById("main")?.focus({preventScroll:!0}),scrollTo(0,0),!t)return;let n=performance.now()+Is,s=()=>{n=0};for(let r of["wheel","keydown","pointerdown"])addEventListener(r,s,{once:!0,passive:!0});let o=()=>{let r=t.href&&document.querySelector(`a[href="${CSS.escape(t.href)}"]`);r&&r.focus({preventScroll:!0}),scrollTo(0,t.top||0),!((r||!t.href)&&Math.abs(scrollY-(t.top||0))<2)&&pe===e&&performance.now()<n&&requestAnimationFrame(o)};o()}me===null&&history.replaceState({step:pe},"");me&&addEventListener("click",e=>{let t=e.target.closest?.("a")?.getAttribute("href");t?.startsWith("#/")&&(e.preventDefault(),se(t))});function se(e){me===null?location.hash=e:(me=e,xt(),scrollTo(0,0))}function et(){let[e,t]=Ds().replace(/^#/,"").split(/\?(.*)/s);return{path:e.split("/").filter(Boolean).map(Hs),params:new URLSearchParams(t||"")}}function Hs(e){try{return decodeURIComponent(e)}catch{return e}}function k(e,t={}){let n=new URLSearchParams;for(let[o,r]of Object.entries(t))for(let a of[r].flat())a!=null&&a!==""&&n.append(o,String(a));let s=n.toString();return`#/${e.map(encodeURIComponent).join("/")}${s?`?${s}`:""}`}function P(e,t={}){se(k(e,t))}function C(e){let t=et(),n={};for(let o of new Set(t.params.keys()))n[o]=t.params.getAll(o);let s=k(t.path,{...n,...e});me===null?history.replaceState(history.state,"",location.pathname+location.search+s):me=s,xt()}function L(e,t={},n=()=>null,s=0){let[o,r]=N({data:null,problem:null,of:""}),[a,c]=N(""),[i,p]=ge($=>$+1,0),u=Q(0),m=e===null?"":Me(e,t);q(()=>{if(!m)return;let $=new AbortController,h=performance.now(),w=f=>{$.signal.aborted||r(f)};return te(e,t,$.signal).then(f=>{u.current=performance.now()-h,w({data:f,problem:null,of:m})},f=>w(v=>({...v,problem:f}))),()=>$.abort()},[m,i,s]),q(()=>o.problem?.status===401?Ht(p):void 0,[o.problem]);let d=o.data&&m?n(o.data):null;return q(()=>{if(!d)return;let $,h=()=>{clearTimeout($),$=setTimeout(p,Math.min(1e4,3*u.current))},w=Fe(d,o.data.state||"",h,c);return()=>{clearTimeout($),w()}},[d?.join(`
`)]),m?{...o,live:a,isStale:o.of!==m,reload:p}:{data:null,problem:null,of:"",live:"",isStale:!1,reload:p}}function tt(e,t,n){let[s,o]=n,r=n.length===2,a=L(r?"curve-flips":null,{name:e,label:t,from_step:s,to_step:o}),{lost:c,gained:i}=a.data&&!a.isStale?a.data:{},p=c?[...c.rows,...i.rows].map(m=>m.id):[];return{answer:a,all:p,href:m=>k(["curve",e,"sample"],{id:m,label:t,step:o,from:s,to:o})}}function D(e){let t=Q(e);t.current=e,vn(()=>_e(t),[])}function oe(e){return ge(t=>!t,e)}var nt=null,Fs="./markdown.js";async function Us(){let e=await(globalThis.heldoutMarkdown??import(Fs));e.setElements(l),nt=e}var kt=class extends ee{componentDidMount(){let t=n=>this.setState({problem:n});nt||Us().then(()=>t(null),t)}render({text:t,extracted:n},{problem:s}){return nt?nt.Markdown({text:t,extracted:n}):l`${s?l`<p class="soft">Markdown could not be loaded.</p>`:null}
      <pre class="said">${g(t)}</pre>`}};function qs({text:e,mark:t}){if(!t)return g(e);let[n,s]=t;return l`${g(e.slice(0,n))}<mark title="what the grader extracted">${g(e.slice(n,s))}</mark>${g(e.slice(s))}`}function ye({before:e,after:t}){let n=Cn(g(e||""),g(t||"")),s={gone:"del",new:"ins"};return l`<pre class="said diff">${n.map(([o,r])=>o==="same"?r:l`<${s[o]}>${r}<//>`)}</pre>`}function st({text:e,mark:t=null,rendered:n=!1}){return n?l`<${kt} text=${e} extracted=${t&&e.slice(...t)} />`:l`<pre class="said"><${qs} text=${e} mark=${t} /></pre>`}function Ws({call:e}){return l`<div class="call">
    <div><span class="soft">tool call</span>
      ${e.problem?l` <span class="errored">${g(e.problem)}</span>`:""}</div>
    <${st} text=${`${e.name}(${e.arguments})`} />
    ${e.result===null?l`<p class="soft">no result</p>`:l`<div class="result ${e.failed?"errored":""}">
            <span class="soft">${e.failed?"result: the tool failed":"result"}</span>
            <${st} text=${e.result} /></div>`}
  </div>`}function Ks({reasoning:e,text:t,calls:n}){let s=n.flatMap(o=>[`${o.name}(${o.arguments})`,o.result]);navigator.clipboard?.writeText([e,t,...s].filter(Boolean).join(`

`))}function Gs({tokens:e,seconds:t=null,reply_seconds:n=null}){return[e&&`${x(e)} tokens`,t!==null&&W(t),n!==null&&`reply ${W(n)}`].filter(Boolean).join(" \xB7 ")}function zs({turn:e,rendered:t,folded:n}){return l`<article class="turn ${e.role}"><details open>
    <summary>${e.role} <span class="soft">${Gs(e)}</span></summary>
    ${e.reasoning?l`<details class="reasoning" open=${!n}>
            <summary>reasoning, ${x(e.reasoning.length)} characters</summary>
            <${st} text=${e.reasoning} /></details>`:null}
    ${e.images.map((s,o)=>l`<img class="said" src=${s} alt="image ${o+1} of the message" />`)}
    ${e.text?l`<${st} text=${e.text} mark=${e.mark} rendered=${t} />`:null}
    ${e.calls.map(s=>l`<${Ws} call=${s} />`)}
  </details>
  <button class="plain copy" onClick=${()=>Ks(e)}>copy</button></article>`}function fe({sample:e,rendered:t=!1,folded:n=!0,without:s=0}){return e.turns.length?l`<div class="conversation">${e.turns.slice(s).map(o=>l`<${zs} key=${o.place} turn=${o} rendered=${t} folded=${n} />`)}</div>`:l`<p class="soft">There is no conversation.</p>`}var re=28,ot=6e6,xe=100;function Js(e,t,n,s,o){let r=Math.max(0,t-n);return t*re<=ot?Math.min(r,Math.floor(e/re)):Math.round(e/Math.max(1,s-o)*r)}function Vs(e,t,n,s,o){let r=Math.max(0,t-n);return t*re<=ot?e*re:r?e/r*(s-o):0}var ke=class extends ee{state={first:0,view:600};pages=new Map;waiting=new Set;componentDidMount(){this.observer=new ResizeObserver(()=>this.setState({view:this.box.clientHeight})),this.observer.observe(this.box),this.box.addEventListener("wheel",this.onWheel,{passive:!1});let t={j:()=>this.move(this.props.selected+1),ArrowDown:()=>this.move(this.props.selected+1),k:()=>this.move(this.props.selected-1),ArrowUp:()=>this.move(this.props.selected-1),PageDown:()=>this.move(this.props.selected+this.visible-1),PageUp:()=>this.move(this.props.selected+1-this.visible),Home:()=>this.move(0),End:()=>this.move(this.props.total-1),Enter:()=>this.open()};this.release=_e({current:t}),this.fetch(),this.reveal(this.props.selected)}componentWillUnmount(){this.observer.disconnect(),this.release(),this.abort?.abort()}componentDidUpdate(t){t.version!==this.props.version&&(this.pages.clear(),this.waiting.clear(),this.abort?.abort(),this.box.scrollTop=0,this.setState({first:0})),t.selected!==this.props.selected&&this.reveal(this.props.selected),this.fetch()}get visible(){return Math.max(1,Math.floor(this.state.view/re)-1)}get spacer(){return Math.min(ot,this.props.total*re)+re}onScroll=()=>{let{scrollTop:t,clientHeight:n}=this.box,s=Js(t,this.props.total,this.visible,this.spacer,n);s!==this.state.first&&!this.placed&&this.setState({first:s}),this.placed=!1};onWheel=t=>{if(this.props.total*re<=ot||t.ctrlKey)return;t.preventDefault();let n=Math.max(1,Math.round(Math.abs(t.deltaY)/re));this.show(this.state.first+Math.sign(t.deltaY)*n)};show(t){let n=Math.max(0,Math.min(t,this.props.total-this.visible));this.placed=!0,this.box.scrollTop=Vs(n,this.props.total,this.visible,this.spacer,this.box.clientHeight),this.setState({first:n})}reveal(t){t<this.state.first?this.show(t):t>=this.state.first+this.visible&&this.show(t-this.visible+1)}move(t){this.box.focus({preventScroll:!0}),this.select(t)}select(t){this.props.total&&this.props.onSelect(Math.max(0,Math.min(t,this.props.total-1)))}open(t=this.props.selected){let n=this.rowAt(t);n&&!this.props.isStale&&this.props.onOpen(n,t)}rowAt(t){return this.pages.get(Math.floor(t/xe))?.[t%xe]}async fetch(){let{total:t,load:n,version:s}=this.props,o=Math.floor(this.state.first/xe),r=Math.floor(Math.min(t-1,this.state.first+this.visible+1)/xe);for(let a=o;a<=r;a++)if(!(this.pages.has(a)||this.waiting.has(a)||t===0)){this.waiting.add(a),this.abort??=new AbortController,this.abort.signal.aborted&&(this.abort=new AbortController);try{let c=await n(a*xe,xe,this.abort.signal);s===this.props.version&&this.pages.set(a,c)}catch(c){c.name!=="AbortError"&&this.props.onProblem?.(c)}this.waiting.delete(a),this.forceUpdate()}}render(){let{columns:t,total:n,label:s,isStale:o}=this.props,{first:r}=this.state,a=[];for(let i=r;i<Math.min(n,r+this.visible+2);i++)a.push(i);let c={gridTemplateColumns:t.map(i=>i.width).join(" ")};return l`<div class="grid ${o?"stale":""}" role="grid" aria-label=${s}
      aria-busy=${o} aria-rowcount=${n} aria-colcount=${t.length} tabindex="0"
      onScroll=${this.onScroll}
      ref=${i=>{this.box=i}}>
      <div class="spacer" role="presentation" style=${{height:`${this.spacer}px`}}>
        <div class="pane" role="rowgroup">
          <div class="line head" role="row" style=${c}>${t.map(this.heading)}</div>
          ${a.map(i=>this.line(i,c))}
        </div>
      </div>
    </div>`}heading({title:t,numeric:n,sorted:s,onSort:o}){let r={ascending:" \u2191",descending:" \u2193"}[s]||"";return l`<span role="columnheader" class=${n?"num":""} aria-sort=${s}>
      ${o?l`<button class="plain" onClick=${o}>${t}${r}</button>`:t}</span>`}line(t,n){let{columns:s,selected:o,isAbsent:r}=this.props,a=this.rowAt(t),c=[t===o&&"selected",a&&r?.(a)&&"absent"].filter(Boolean).join(" "),i=()=>{this.select(t),this.open(t)};return l`<div key=${t} class="line ${c}" role="row" aria-rowindex=${t+1}
      aria-selected=${t===o} style=${n} onClick=${i}>
      ${s.map(p=>l`<span role="gridcell" class=${p.numeric?"num":""}>${a?p.cell(a):""}</span>`)}
    </div>`}};var Nn=["lost","gained","lower","higher","equal"],Rn={lost:"failed",gained:"passed",lower:"failed",higher:"passed"},Ys=200,St=100;function jn({a:e,b:t,found:n,params:s}){let o=s.get("where")||"",r=s.get("sort")||"difference",a=Number(s.get("at")||0),c={a:e,b:t,metric:s.get("metric")||"",allow:s.getAll("allow"),where:o,sort:r},i=L("pairs",{...c,limit:St}),[p,u]=N(null),m=i.data,d=p||(i.problem?.status===409?null:i.problem),$=async(v,_,S)=>v?(await te("pairs",{...c,offset:v,limit:_},S)).rows:m.rows,h=L(a>=St?"pairs":null,{...c,offset:a,limit:1}),w=a<St?m?.rows[a]:h.data?.rows[0],f=(v,_)=>_===a&&P(["compare",e,t,"sample"],{id:v.id});return l`<h2>Samples</h2>
    <${Qs} head=${m} where=${o} found=${n} />
    ${d?l`<${j} problem=${d} retry=${i.reload} />`:null}
    ${m?l`<p role="status" class="soft">${x(m.total)} of ${x(m.of)} samples${m.left_out?`; ${x(m.left_out)} more are not in the exported file`:""}</p>`:null}
    ${m?l`<div class="pairs"><${ke} label="samples of both runs" columns=${Xs(r)} load=${$}
              total=${m.total} version=${i.of} isStale=${i.isStale||i.problem!==null}
              selected=${Math.min(a,Math.max(0,m.total-1))} isAbsent=${v=>v.inside===!1}
              onSelect=${v=>C({at:v})} onOpen=${f} onProblem=${u} />
            ${w?l`<${Zs} a=${e} b=${t} row=${w} />`:null}</div>`:null}`}function Qs({head:e,where:t,found:n}){let[s,o]=N(null);q(()=>{if(s===null)return;let i=setTimeout(()=>{C({where:s,at:""}),o(null)},Ys);return()=>clearTimeout(i)},[s]);let r=t.split(/\s+/).filter(Boolean),a=i=>{let p=r.filter(u=>!Nn.includes(u.replace(/:yes$/,"")));C({where:(r.includes(i)?p:[...p,i]).join(" "),at:""})},c=n.pass_threshold===null?{lost:"the return fell",gained:"the return rose"}:{lost:`${n.a.name} passed, ${n.b.name} failed`,gained:`${n.a.name} failed, ${n.b.name} passed`};return l`<div class="toolbar">
    <input class="filter" type="search" aria-label="Filter samples" data-filter spellcheck="false"
      placeholder=${"filter: difference<0  level:hard  lost:yes  text:refund"} value=${s??t}
      onInput=${i=>o(i.target.value)} />
    ${Nn.map(i=>l`<button aria-pressed=${r.includes(`${i}:yes`)} title=${c[i]}
        onClick=${()=>a(`${i}:yes`)}>${`${i} `}
        ${e?l`<span class="soft">${x(e.counts[i])}</span>`:null}</button>`)}</div>`}function Xs(e){let t=(s,o)=>({...o,sorted:e===s?"ascending":e===`-${s}`?"descending":void 0,onSort:()=>C({sort:e===`-${s}`?s:`-${s}`,at:""})}),n=(s,o)=>t(s,{title:o,width:"70px",numeric:!0,cell:r=>r.text[s]});return[{title:"change",width:"96px",cell:s=>l`${Rn[s.change]?l`<${I} outcome=${Rn[s.change]} /> `:""}${s.change}`},t("id",{title:"sample",width:"minmax(90px, 1fr)",cell:s=>O(s.id,60)}),n("a","A"),n("b","B"),n("difference","B \u2212 A"),{title:"question",width:"minmax(120px, 2fr)",cell:s=>O(s.question??"")}]}function Zs({a:e,b:t,row:n}){let{id:s}=n,o=n.inside!==!1,r=[L(o?"sample":null,{name:e,id:s}),L(o?"sample":null,{name:t,id:s})],[a,c]=r.map(u=>u.isStale?null:u.data),i=r.map(u=>u.problem).find(Boolean),p=(u,m)=>l`<p><span class="letter">${u}</span> ${m.text.reward}${" "}
      <${I} outcome=${m.outcome} /> <span class="errored">${g(m.error??"")}</span></p>
    <pre class="said clamp">${g(m.answer)}</pre>`;return l`<section class="answers" aria-label="both answers">
    <h3><a href=${k(["compare",e,t,"sample"],{id:s})}>${g(s)}</a></h3>
    ${o?null:l`<p class="soft">Its conversations are not in the exported file.</p>`}
    ${i?l`<${j} problem=${i} />`:null}
    ${a&&c?l`<p class="soft">${O(a.question,300)}</p>
            <p>target: <code>${O(a.target??"\u2013",120)}</code></p>
            ${a.repeats.length>1?l`<p class="soft">The first of ${a.repeats.length} attempts; the page of both
                    conversations has all.</p>`:null}
            ${p("A",a)}${p("B",c)}
            ${a.answer===c.answer?l`<p class="soft">The answers are the same.</p>`:l`<p class="soft">from A to B</p>
                    <${ye} before=${a.answer} after=${c.answer} />`}`:null}</section>`}var eo={b_better:"better",a_better:"worse",inconclusive:"inconclusive"},rt=new Map;function In({a:e,b:t,params:n}){let s=n.get("by")||"",o=n.get("metric")||"",r=n.getAll("allow"),a=L("compare",{a:e,b:t,by:s,metric:o,allow:r});return D({w:()=>P(["compare",t,e],{allow:r}),Escape:()=>P(["runs"])}),q(()=>{rt.set(e,(rt.get(e)||new Set).add(t))},[]),l`<${H} answer=${a} view=${p=>{if(a.problem?.status===409)return null;let u=rt.get(e)?.size||0;return l`
      <${B} path=${[["runs",k(["runs"])]]} />
      <h1>${g(t)} <span class="soft">compared with</span> ${g(e)}</h1>
      <p class="verdict ${eo[p.verdict]||""}" role="status">${g(p.sentence)}</p>
      ${u>2?l`<p class="note yellow">${u} runs were compared with ${g(e)} since this page was
              opened: the best of many looks better than it is. ${R()?"":to(e)}</p>`:null}
      <div class="columns">
        <section>
          <div class="sides">
            <${Dn} letter="A" name=${e} side=${p.a} /><${Dn} letter="B" name=${t} side=${p.b} />
          </div>
          <${no} found=${p} metric=${o} by=${s} />
          <${V} blocks=${p.blocks.slice(2)} />
          <${so} blocks=${p.slice_blocks} />
        </section>
        <aside>
          ${p.paired?l`<${oo} found=${p} />`:null}
          <${ro} rows=${p.config} />
          ${R()?null:l`<p><a href=${Bn([e,t])}>Compare with more runs</a></p>`}
          <${we} names=${[e,t]} />
        </aside>
      </div>
      ${p.paired?l`<${jn} a=${e} b=${t} found=${p} params=${n} />`:null}`}} refused=${p=>p.status===409?l`<${Ct} names=${[e,t]} problem=${p} allow=${r} />`:null} />`}var Bn=e=>k(["several"],{run:e}),to=e=>l`<a href=${Bn([e,...rt.get(e)])}>Compare them in one table</a>`;function Ct({names:e,problem:t,allow:n}){let s=(o,r)=>C({allow:r?[...n,o]:n.filter(a=>a!==o)});return l`<${B} path=${[["runs",k(["runs"])]]} />
    <h1>${e.map(g).join(" and ")}</h1>
    <p class="verdict">Not compared: a difference would not be the policy's alone.</p>
    <${j} problem=${t} />
    <p>Compare them all the same, although these differ:</p>
    <p>${[...new Set([...n,...t.kinds])].map(o=>l`<label class="allow"><input type="checkbox" checked=${n.includes(o)}
        onChange=${r=>s(o,r.target.checked)} /> ${o}</label>`)}</p>`}var Dn=({letter:e,name:t,side:n})=>l`<div><span class="letter">${e}</span><div>
    <a href=${k(["run",t])}>${g(t)}</a>${" "}
    <span class="soft">${g(n.model||"")}</span><br /><${Qe} of=${n} /></div></div>`;function no({found:e,metric:t,by:n}){let s=(p,{difference:u,low:m,high:d})=>({label:p,value:u,low:m,high:d}),o=e.slices.map(p=>s(p.value===null?"\u2013":g(p.value),p)),r=e.with_errors,a=r?[s(`errored as ${e.errors_as??0}`,r),s(e.scored_samples,e)]:[s("all samples",e)];a[a.length-1].strong=!0;let c=l`<${F} label="metric" value=${t||"reward"}
    options=${["reward","passed",...e.metrics]}
    onChange=${p=>C({metric:p==="reward"?"":p})} />`,i=l`<${F} label="slices by" value=${n} none="no key" options=${e.keys}
    onChange=${p=>C({by:p})} />`;return l`<h2>${g(e.b.name)} − ${g(e.a.name)}, ${e.metric}</h2>
    <${be} at=${0} rows=${[...o,...a]} detectable=${e.minimum_detectable} sign />
    ${o.length&&r?l`<p class="soft">Slices are drawn of what was scored; their numbers below have both
            readings.</p>`:null}
    <p class="toolbar">${R()?null:c}${e.keys.length?i:null}</p>`}function so({blocks:e}){if(!e.length)return null;let t=e.findLastIndex(n=>n.columns)+1;return l`<details><summary>Slices in numbers</summary>
      <${V} blocks=${e.slice(0,t)} /></details>
    <${V} blocks=${e.slice(t)} />`}function oo({found:e}){return l`<h2>Sample by sample</h2>
    <div class="tally" aria-hidden="true">${["wins","ties","losses"].map(n=>l`<span class=${n} style=${{flexGrow:e[n]||.001}}></span>`)}</div>
    <p>${g(e.b.name)} is higher on <b>${x(e.wins)}</b>, lower on${" "}
      <b>${x(e.losses)}</b>, equal on ${x(e.ties)}.</p>`}function ro({rows:e}){let t=(n,s)=>l`<span class="letter">${n}</span> ${O(s??"\u2013",120)}`;return l`<h2>What differs in the settings</h2>
    ${e.length?l`<dl class="settings">${e.map(n=>l`<dt>${g(n.key)}</dt>
              <dd>${t("A",n.a)}<br />${t("B",n.b)}</dd>`)}</dl>`:l`<p class="soft">Nothing.</p>`}`}var[Se,de,lo]=[16,296,334];function lt(e){let t=[...new Set(e.flatMap(({points:c})=>c.map(i=>i.step)))];t.sort((c,i)=>c-i);let n=ft(1240),s=n<700?58:150,[o,r]=[t[0],t.at(-1)],a=n-36;return{steps:t,width:n,left:s,right:a,x:ie(o,r===o?o+1:r,s,a)}}var Ce=({steps:e},t,n)=>e[Math.max(0,Math.min(e.length-1,e.indexOf(t)+n))];function ao(e){let t=[];for(let n of e){let s=t.at(-1);s?.at(-1).attempt===n.attempt?s.push(n):t.push([n])}return t}function at({series:e,axis:t,at:n,onAt:s,over:o=[],chosen:r=[],windows:a=[],best:c,onPoint:i}){let{steps:p,width:u,left:m,right:d,x:$}=t,h=e.map(({points:M})=>M.filter(E=>K(E.mean))),f=[...h.flat(),...o].flatMap(M=>[M.mean,M.low,M.high,M.mean_scored]).filter(K),[v,_]=f.length?[Math.min(...f),Math.max(...f)]:[0,1],S=(_-v||.1)*.08,b=ie(v-S,_+S,de,Se);return l`<svg class="curve" viewBox="0 0 ${u} ${lo}" width=${u} role="group"
    aria-label="Mean by training step; the table below has the numbers" onPointerMove=${M=>{let E=M.currentTarget.getBoundingClientRect(),A=(M.clientX-E.left)/E.width*u;s(p.reduce((J,Y)=>Math.abs($(Y)-A)<Math.abs($(J)-A)?Y:J))}}>
    ${Le(v-S,_+S).map(M=>l`<line class="rule" x1=${m} x2=${d} y1=${b(M)} y2=${b(M)} />
        <text class="tick" x=${m-8} y=${b(M)+4} text-anchor="end">${ve(M)}</text>`)}
    ${Le(p[0],p.at(-1),u/110).map(M=>l`<text class="tick" x=${$(M)} y=${de+20} text-anchor="middle">${M}</text>`)}
    <text class="tick" x=${d} y=${de+36} text-anchor="end">training step</text>
    ${a.map(([M,E])=>l`<rect class="window" x=${$(M)-6} width=${$(E)-$(M)+12} y=${Se}
        height=${de-Se} />`)}
    <line class="cross" x1=${$(n)} x2=${$(n)} y1=${Se} y2=${de} />
    ${e.map(({points:M},E)=>l`<g class="series s${E} ${o.length?"thin":""}">
        ${ao(h[E]).map((A,J)=>l`<${Hn} line=${A} x=${$} y=${b} hasBand=${!o.length} />
            ${J?l`<${io} point=${A[0]} x=${$(A[0].step)} />`:null}`)}
        ${M.filter(A=>!K(A.mean)).map(A=>l`<line class="missed ${A.pending?"pending":""}" x1=${$(A.step)} x2=${$(A.step)}
              y1=${de-8} y2=${de}><title>step ${A.step}: ${A.note}</title></line>`)}
        ${h[E].map(A=>l`<${co} point=${A} x=${$(A.step)} y=${b} onPoint=${i}
            isChosen=${r.includes(A.step)} isBest=${A.step===c} />`)}</g>`)}
    ${o.length?l`<g class="over"><${Hn} line=${o} x=${$} y=${b} hasBand /></g>`:null}
  </svg>`}function Hn({line:e,x:t,y:n,hasBand:s}){let o=ht(e.filter(r=>K(r.low)),r=>t(r.step),r=>n(r.low),r=>n(r.high));return l`${s?l`<polygon class="band" points=${o} />`:null}
    <polyline class="mean" points=${e.map(r=>`${t(r.step)},${n(r.mean)}`).join(" ")} />`}var io=({point:e,x:t})=>l`<line class="resumed" x1=${t} x2=${t} y1=${Se-12} y2=${de} />
    <text class="tick" x=${t+4} y=${Se-4}>attempt ${e.attempt}</text>`;function co({point:e,x:t,y:n,isChosen:s,isBest:o,onPoint:r}){let{step:a,mean:c,low:i,high:p,mean_scored:u,errors:m,text:d}=e,h=`dot ${[e.fewer&&"hollow",s&&"chosen",o&&"best"].filter(Boolean).join(" ")}`,w=m?`, ${m} errored; ${d.mean_scored} without them`:"",f=`step ${a}: ${d.mean} (${d.interval}), n ${e.n}${w}`;return r?l`
    ${K(i)?l`<line class="whisker" x1=${t} x2=${t} y1=${n(i)} y2=${n(p)} />`:null}
    ${K(u)?l`<circle class="second" cx=${t} cy=${n(u)} r="4" />`:null}
    <circle class=${h} cx=${t} cy=${n(c)} r=${o?6:4} tabindex="0" role="button"
      aria-label="step ${a}, mean ${d.mean}" onClick=${()=>r(a)}
      onKeyDown=${v=>v.key==="Enter"&&r(a)}><title>${f}</title></circle>`:l`<circle class=${h} cx=${t} cy=${n(c)} r="3"><title>${f}</title></circle>`}function it({series:e,at:t,metric:n,over:s=[]}){let o=i=>i.find(p=>p.step===t),r=e.map(({name:i,points:p},u)=>({name:i,css:`s${u}`,point:o(p)}));s.length&&r.push({name:"mean over runs",css:"over",point:o(s)});let a=i=>p=>p.point?i(p.point):"\u2013",c=i=>l`<span class="key mean ${i.css}"></span> ${O(i.name,60)}`;return l`<div class="readout"><${X} label="at step ${t}" rows=${r} columns=${[{title:`step ${t}`,cell:c},{title:n,numeric:!0,cell:a(i=>i.text.mean)},{title:"95% interval",cell:a(i=>i.text.interval)},{title:"n",numeric:!0,cell:a(i=>i.n)},{title:"errors",numeric:!0,cell:a(i=>x(i.errors))},{title:"verdict",cell:a(i=>i.kind||"\u2013")},{title:"note",wrap:!0,cell:i=>O(i.point?i.point.note||"":"no eval at this step")}]} /></div>`}var uo={p:"passed",f:"failed",e:"errored"},Et=e=>["from","to"].map(t=>e.get(t)).filter(Boolean).map(Number);function Fn({name:e,params:t}){let n=t.get("metric")||"",s=L("curve",{name:e,label:t.get("label")||"",metric:n},()=>[e]),[o,r]=N(null),[,a]=ge(f=>f+1,0);q(()=>{let f=setInterval(a,1e4);return()=>clearInterval(f)},[]);let c=Et(t),i=f=>{let[v,_]=[...c.slice(-1),f].sort((S,b)=>S-b);C(c.includes(f)?{from:"",to:""}:{from:v,to:_??""})},p=f=>{let v=s.data?.points.filter(y=>y.result).map(y=>y.step)||[],[_=v[0],S=v.at(-1)]=c,b=v[v.indexOf(S)+f];c.length<2?C({from:_,to:S}):b!==void 0&&b>_&&C({from:_,to:b})},u=[{name:e,points:s.data?.points||[]}],m=lt(u),d=m.steps.includes(o)?o:m.steps.at(-1),$=s.data?.labels.length>1?s.data.label:"",h=tt(e,$,s.data?c:[]);return D({Escape:()=>P(["runs"]),ArrowLeft:()=>r(Ce(m,d,-1)),ArrowRight:()=>r(Ce(m,d,1)),n:()=>h.all[0]&&se(h.href(h.all[0])),"[":()=>p(-1),"]":()=>p(1)}),l`<${H} answer=${s} view=${f=>{let v=f.points.filter(_=>_.result);return l`
      <${B} path=${[["runs",k(["runs"])]]} />
      <h1>${g(f.name)} ${f.live?l`<${ue} state=${s.live||"live"} />`:null}</h1>
      <${po} name=${e} curve=${f} />
      <${$o} curve=${f} hasResults=${v.length>0} />
      ${m.steps.length?l`<${mo} curve=${f} results=${v} chosen=${c} onPoint=${i}
                series=${u} axis=${m} at=${d} onAt=${r} />
              <${bo} name=${e} label=${$} version=${v.length} axis=${m} at=${d} />`:null}
      <${go} curve=${f} />
      <div class="columns">
        <section>
          ${f.best?l`<p>${g(f.best.sentence)}</p>`:null}
          ${c.length===2?l`<${vo} flips=${h} steps=${c} results=${v} />`:l`<p class="soft">Choose two points to see which samples flipped between them${c.length?`; step ${c[0]} is chosen`:""}.</p>`}
        </section>
        <${fo} curve=${f} />
      </div>
      <details><summary>All points</summary>
        <${ho} curve=${f} /></details>`}} />`}function po({name:e,curve:t}){return t.labels.length<2?null:l`<nav class="tabs" aria-label="evals">${t.labels.map(n=>l`<a aria-current=${n===t.label?"true":void 0}
      href=${k(["curve",e],{label:n})}>${g(n)}</a>`)}</nav>`}function $o({curve:e,hasResults:t}){let{verdict:n,no_verdict:s,every:o}=e;if(!t)return l`<p class="verdict" role="status">No point yet.${o?` An eval is due every ${o} steps.`:""}</p>`;let r=n?.sentence||(s?`no verdict: ${s}`:"no verdict yet");return l`<p class="verdict ${n?.kind||""}" role="status" aria-live="polite">
    ${g(r)}</p>`}function mo({curve:e,results:t,chosen:n,onPoint:s,...o}){let{metric:r,best:a}=e,c=r==="reward"?e.verdict?.windows||[]:[],i=r==="reward"?a?.step??null:null,p=(u,m)=>l`<span class="key ${u}"></span> ${m}`;return l`
    <${at} ...${o} chosen=${n} windows=${c} best=${i} onPoint=${s} />
    <${it} series=${o.series} at=${o.at} metric=${r} />
    <p class="legend soft">
      ${p("mean",`mean ${r} with its 95% interval`)}
      ${c.length?p("window","the two windows of the verdict"):null}
      ${i===null?null:p("best","best step")}
      ${t.some(u=>u.mean_scored!==null)?p("second","without errored items, which the mean counts as 0"):null}
      ${t.some(u=>u.fewer)?p("hollow","fewer items than the others"):null}
      ${e.points.some(u=>!u.result)?p("tick","skipped or in flight"):null}</p>`}function fo({curve:e}){let t=e.points.at(-1),n=e.every?`; due every ${e.every} steps`:"",s=[["status",g(e.status.line)],["last point",t&&l`step ${t.step}, <time datetime=${t.time}>${ce(t.time)}</time>${n}`],["model",e.model&&g(e.model)],["evals took",W(e.seconds)],["superseded",e.superseded>0&&`${x(e.superseded)} results left out: a later attempt went back to before them`],["last skip",e.last_skip&&g(e.last_skip)],["saved to",l`<code>${g(e.path)}</code>`]];return l`<aside><h2>About this curve</h2><${ne} rows=${s} />
    <${we} names=${[e.name]} /></aside>`}function ho({curve:e}){let t=n=>n.run&&!R()?l`<a href=${k(["run",n.run])}>${n.step}</a>`:n.step;return l`<${X} label="points" rows=${[...e.points].reverse()} columns=${[{title:"step",numeric:!0,cell:t},{title:e.metric,numeric:!0,cell:n=>n.text.mean},{title:"95% interval",cell:n=>n.text.interval},{title:"n",numeric:!0,cell:n=>n.n},{title:"errors",numeric:!0,cell:n=>x(n.errors)},{title:"took",numeric:!0,cell:n=>W(n.seconds)},{title:"verdict",cell:n=>n.kind||"\u2013"},{title:"note",wrap:!0,cell:n=>g(n.note)}]} />`}function go({curve:e}){let t=e.labels.filter(a=>a!==e.label),n=new Map([...t.map(a=>[`${e.name}: ${a}`,[e.name,a]]),...e.others.map(a=>[a,[a,""]])]),s=["reward","pass_rate",...e.metrics],o=n.size>0&&!R(),r=([a,c])=>P(["curves"],{curve:[e.name,a],label:[e.label,c],metric:e.metric});return l`<p class="toolbar">
    ${e.metrics.length?l`<${F} label="metric" value=${e.metric} options=${s}
            onChange=${a=>C({metric:a==="reward"?"":a})} />`:null}
    ${o?l`<${F} label="draw together with" value="" none="another curve"
            options=${[...n.keys()]} onChange=${a=>a&&r(n.get(a))} />`:null}</p>`}function vo({flips:e,steps:t,results:n}){let[s,o]=t,{answer:r}=e;if(r.problem)return l`<${j} problem=${r.problem} />`;if(!r.data||r.isStale)return null;let a=t.map(p=>n.find(u=>u.step===p)?.run),c=a.every(Boolean)&&!R(),i=(p,u,{total:m,rows:d})=>l`<section>
    <h3><${I} outcome=${u} /> ${p} <span class="soft">${x(m)}</span></h3>
    <ul class="flips" tabindex="0" aria-label=${p}>${d.map(({id:$,text:h})=>l`<li><a href=${e.href($)}>${O($,60)}</a>${" "}
        <span class="soft">${h.before} → ${h.after}</span></li>`)}</ul>
    ${m>d.length?l`<p class="soft">and ${x(m-d.length)} more</p>`:null}
  </section>`;return l`<h2>From step ${s} to step ${o}</h2>
    <${V} blocks=${r.data.notes} />
    <p class="soft">These two were picked by looking. What the curve allows one to say is the verdict
      above. ${c?l`<a href=${k(["compare",...a])}>Compare the two evals</a>`:""}</p>
    <div class="pair">
      ${i("lost","failed",r.data.lost)}${i("gained","passed",r.data.gained)}</div>
    ${e.all.length?l`<p class="soft"><kbd>n</kbd> goes through them.</p>`:null}`}function bo({name:e,label:t,version:n,axis:s,at:o}){let r=L(n>1?"strip":null,{name:e,label:t},void 0,n);if(r.problem)return l`<${j} problem=${r.problem} />`;let a=r.data;if(!a?.rows.some(f=>/[pfe]/.test(f.cells)))return null;let{x:c,width:i,left:p}=s,u=a.steps.map(c),m=u.slice(1).map((f,v)=>f-u[v]),d=Math.max(1.5,Math.min(36,...m)-1),$=(f,v)=>[...f].map((_,S)=>_===v?`M${(u[S]-d/2).toFixed(1)} 1h${d}v13h-${d}z`:"").join(""),h=f=>l`<span class="key ${f}"></span> ${f} `,w=f=>`${[...f].filter(v=>v==="p").length} of ${f.length}`;return l`<h2>Samples by step</h2>
    <p class="legend soft">One line per sample, those that flipped last first.
      ${["passed","failed","errored"].map(h)}</p>
    <div class="heat" tabindex="0" role="region" aria-label="samples by step"><div>
      ${a.rows.map(({id:f,cells:v})=>l`<a href=${k(["curve",e,"sample"],{id:f,label:t,step:o})} title=${f}
          aria-label="${f}: ${w(v)} steps passed">
          <span class="id" style=${{width:`${p-24}px`}}>${O(f,24)}</span>
          <svg viewBox="0 0 ${i} 15" width=${i} height="15" aria-hidden="true">${Object.entries(uo).map(([_,S])=>l`<path class=${S} d=${$(v,_)} />`)}</svg></a>`)}
      <i class="cross" style=${{left:`${c(o)}px`}}></i></div></div>
    ${a.total>a.rows.length?l`<p class="soft">the first ${a.rows.length} of ${x(a.total)}</p>`:null}`}var wo=({name:e,label:t,labels:n})=>n.length>1?`${e}: ${t}`:e;function Un({params:e}){let[t,n]=[e.getAll("curve"),e.getAll("label")],s=e.get("metric")||"",o=L("curves",{name:t,label:n,metric:s},()=>[...new Set(t)]),[r,a]=N(null),[c,i]=oe(!0),p=(o.data?.series||[]).map(f=>({...f,name:wo(f),of:f.name})),u=lt(p),m=u.steps.includes(r)?r:u.steps.at(-1),d=t.map((f,v)=>n[v]||"");D({ArrowLeft:()=>a(Ce(u,m,-1)),ArrowRight:()=>a(Ce(u,m,1)),Escape:()=>P(["runs"])});let $=(f,v="")=>C({curve:[...t,f],label:[...d,v]}),h=f=>C({curve:t.toSpliced(f,1),label:d.toSpliced(f,1)});return l`<${H} answer=${o} view=${f=>{let v=f.series.flatMap(b=>b.labels.filter(y=>!p.some(M=>M.of===b.name&&M.label===y)).map(y=>[b.name,y])),_=new Map([...v.map(([b,y])=>[`${b}: ${y}`,[b,y]]),...f.others.map(b=>[b,[b]])]),S=c?f.over_runs:[];return l`
      <${B} path=${[["runs",k(["runs"])]]} />
      <h1>${p.length} curves <${ue} state=${o.live} /></h1>
      ${p.map((b,y)=>l`<${_o} one=${b} css="s${y}"
          onRemove=${p.length>1?()=>h(y):null} />`)}
      ${u.steps.length?l`<${at} series=${p} axis=${u} at=${m} onAt=${a} over=${S} />
              <${it} series=${p} at=${m} metric=${f.metric} over=${S} />`:l`<p class="soft">No point yet.</p>`}
      <${yo} found=${f} runs=${p.length} isOn=${c} onTurn=${i} />
      <p class="toolbar">
        <${F} label="metric" value=${f.metric} options=${["reward","pass_rate",...f.metrics]}
          onChange=${b=>C({metric:b==="reward"?"":b})} />
        ${_.size&&p.length<6?l`<${F} label="add" value="" none="a curve" options=${[..._.keys()]}
                onChange=${b=>b&&$(..._.get(b))} />`:null}
        <span class="soft">← → move the crosshair</span></p>`}} />`}function _o({one:e,css:t,onRemove:n}){let{kind:s="",sentence:o="no verdict"}=e.verdict||{},r=k(["curve",e.of],{label:e.labels.length>1?e.label:""});return l`<p class="of-series"><span class="key mean ${t}"></span>${" "}
    <a href=${r}>${g(e.name)}</a>${" "}
    <span class="badge ${s}">${s||"no verdict"}</span>${" "}
    <span class="soft">${s?g(o):""}</span>${" "}
    ${n?l`<button class="plain" aria-label="remove ${e.name}" onClick=${n}>✕</button>`:null}</p>`}function yo({found:e,runs:t,isOn:n,onTurn:s}){return e.no_mean?l`<p class="soft">No mean over training runs: ${g(e.no_mean)}.
    Each band is the 95% interval of one curve's own mean, over its samples.</p>`:e.over_runs.length?l`<p><label><input type="checkbox" checked=${n} onChange=${s} />
      ${` mean over ${t} training runs`}</label></p>
    <p class="soft">${n?l`The band is the 95% interval of the mean over training runs: each run's mean is one value,
            n is ${t}. It says how far the mean of other runs, with other seeds, may be. It is drawn at
            the steps at which every run has a whole eval.`:"Each band is the 95% interval of one curve's own mean, over its samples."}</p>`:l`<p class="soft">No mean over training runs: there is no step at
    which all ${t} have a whole eval.</p>`}function qn({name:e,params:t}){let n=t.get("label")||"",s=L("history",{name:e,label:n,id:t.get("id")}),o=Et(t),r=tt(e,n,o),a=r.all.indexOf(t.get("id")),c=b=>r.all[a+b]&&se(r.href(r.all[a+b])),i={label:n,from:t.get("from"),to:t.get("to")},[p,u]=oe(!1),[m,d]=oe(!0),$=t.get("only")==="changed",h=(s.data?.steps||[]).filter(b=>!$||b.changed),w=h.find(b=>String(b.step)===t.get("step"))||h.at(-1),f=h.indexOf(w),v=b=>h[f+b]&&C({step:h[f+b].step});D({"[":()=>v(-1),"]":()=>v(1),n:()=>c(1),p:()=>c(-1),m:u,d,Escape:()=>P(["curve",e],i)});let _=()=>C({only:$?"":"changed"});return l`<${H} answer=${s} view=${b=>l`
    <${B} path=${[["runs",k(["runs"])],[b.name,k(["curve",b.name],i)]]} />
    <h1>${g(b.id)} <span class="soft">across steps</span></h1>
    ${a>=0?l`<p class="toolbar"><button onClick=${()=>c(-1)} title="p">← previous</button>
            <button onClick=${()=>c(1)} title="n">next →</button>
            <span class="soft">
              ${`${a+1} of ${r.all.length} flips from step ${o.join(" to ")}`}</span></p>`:null}
    ${b.question?l`<p>${g(b.question)}</p>`:null}
    ${b.target!==null?l`<p>target: <code>${g(b.target)}</code></p>`:null}
    <nav class="strip" aria-label="steps">${h.map(y=>l`<button class=${y.outcome} aria-pressed=${y===w}
        title="step ${y.step}: reward ${y.text.reward}" onClick=${()=>C({step:y.step})}>
        <${I} outcome=${y.outcome} /><span>${y.step}</span></button>`)}</nav>
    <div class="toolbar">
      <button aria-pressed=${$} onClick=${_}>only where the answer changed</button>
      <button aria-pressed=${m} onClick=${d}>difference</button>
      <button aria-pressed=${p} onClick=${u}>Markdown</button>
    </div>
    ${w?l`<${xo} id=${b.id} step=${w} before=${m?h[f-1]:void 0}
            rendered=${p} />`:null}`} />`}function xo({id:e,step:t,before:n,rendered:s}){let o=t.run&&!R(),r=L(o?"sample":null,{name:t.run,id:e}),a=t.attempts>1?l` <span class="soft">mean of ${t.attempts} attempts</span>`:"";return l`
    <h2>Step ${t.step}: <${I} outcome=${t.outcome} /> reward ${t.text.reward}${a}</h2>
    ${t.error?l`<p class="errored">errored: ${g(t.error)}</p>`:null}
    ${n?.answer!==void 0&&t.answer!==void 0?l`<${ko} before=${n} step=${t} />`:null}
    ${r.problem?l`<${j} problem=${r.problem} />`:null}
    ${r.data&&!r.isStale?l`<${fe} sample=${r.data} rendered=${s} />`:null}
    ${!o&&t.answer!==void 0?l`<pre>${g(t.answer)}</pre>`:null}
    ${t.answer===void 0?l`<p class="soft">The conversation of this step was not saved.</p>`:null}`}function ko({before:e,step:t}){let n=t.answer===e.answer,s=`answer, from step ${e.step} to step ${t.step}`;return l`<p class="soft">${s}${n?": the same":""}</p>
    ${n?null:l`<${ye} before=${e.answer} after=${t.answer} />`}`}function Kn({a:e,b:t,params:n}){let s=n.get("id"),o={a:n.get("a")||"",b:n.get("b")||""},r=L("sample",{name:e,id:s,repeat:o.a}),a=L("sample",{name:t,id:s,repeat:o.b}),c=p=>{let u=(m,d)=>{let $=(m.data?.repeats||[]).map(h=>h.repeat);return $[$.indexOf(Number(o[d]))+p]??o[d]};C({a:u(r,"a")||"",b:u(a,"b")||""})};return D({Escape:()=>P(["compare",e,t]),"[":()=>c(-1),"]":()=>c(1)}),l`<${H} answer=${r} view=${p=>{if(!a.data)return a.problem?l`<${j} problem=${a.problem} />`:null;let u=a.data,m=So(p.turns,u.turns),d=m===1?"the first turn is":`the first ${m} turns are`;return l`
      <${B} path=${[["runs",k(["runs"])],[`${e} and ${t}`,k(["compare",e,t])]]} />
      <h1>${g(p.id)}</h1>
      <p>${g(p.question||"")}</p>
      <p>target: <code>${g(p.target??"\u2013")}</code></p>
      <h2>Answer, from ${g(e)} to ${g(t)}</h2>
      <${ye} before=${p.answer} after=${u.answer} />
      ${m?l`<details><summary>${d} the same in both</summary>
              <${fe} sample=${{...p,turns:p.turns.slice(0,m)}} /></details>`:null}
      <div class="pair">
        <${Wn} side="a" name=${e} sample=${p} without=${m} />
        <${Wn} side="b" name=${t} sample=${u} without=${m} />
      </div>`}} />`}function So(e,t){let n=(o,r)=>JSON.stringify(o)!==JSON.stringify(t[r]),s=e.findIndex(n);return s<0?e.length:s}function Wn({side:e,name:t,sample:n,without:s}){let o=k(["run",t,"sample"],{id:n.id,repeat:n.repeat||""});return l`<section>
    <h2>${e.toUpperCase()}: <a href=${o}>${g(t)}</a>${" "}
      <${I} outcome=${n.outcome} /> ${n.text.reward}</h2>
    ${n.repeats.length>1?l`<div class="toolbar" role="group" aria-label="attempts of ${t}">${n.repeats.map(({repeat:r,outcome:a})=>l`<button aria-pressed=${r===n.repeat}
              onClick=${()=>C({[e]:r||""})}><${I} outcome=${a} />
              ${` attempt ${r+1}`}</button>`)}</div>`:null}
    ${n.error!==null?l`<p class="errored">errored: ${g(n.error)}</p>`:null}
    <${fe} sample=${n} without=${s} /></section>`}var Co=["correct","incorrect","not_attempted"];function Gn({sample:e}){let{name:t,id:n,repeat:s}=e,[o,r]=N(null),[a,c]=N(null),i=Q(null),p=`${t}
${n}
${s}`,{note:u,note_problem:m}=o?.of===p?o:e,d=async(f,v)=>{try{r({of:p,...await Wt("note",{name:t,id:n,repeat:s,label:f,remark:v})}),c(null)}catch(_){c(_)}};if(D(e.takes_notes?{r:()=>i.current?.focus()}:{}),!u&&!m&&!e.takes_notes)return null;let $=u?.label||"",h=u?.remark||"",w=f=>d($===f?"":f,h);return l`<h2>Note</h2>
    ${m?l`<p class="errored">${g(m)}</p>`:null}
    ${a?l`<${j} problem=${a} />`:null}
    ${u&&!u.is_current?l`<p class="errored">about an earlier answer to this sample</p>`:null}
    ${e.takes_notes?l`<div class="toolbar">${[...new Set([...Co,$].filter(Boolean))].map(f=>l`<button aria-pressed=${$===f} onClick=${()=>w(f)}>
              ${g(f)}</button>`)}</div>
          <label class="remark">remark <textarea rows="3" maxlength="4000" key=${p} ref=${i} title="r"
            onChange=${f=>d($,f.target.value)}>${h}</textarea></label>`:l`<p><b>${g($)}</b> ${g(h)}</p>`}
    ${u?l`<p class="soft">written ${ce(u.time)}</p>`:null}`}function zn({name:e}){let t=L("notes",{name:e});if(t.problem?.status===404)return null;if(t.problem)return l`<${j} problem=${t.problem} />`;if(!t.data?.total)return null;let{total:n,counts:s,rows:o}=t.data,r=Object.entries(s).map(([c,i])=>`${i} ${c||"without a label"}`),a=({id:c,repeat:i})=>k(["run",e,"sample"],{id:c,repeat:i||""});return l`<h2>Notes</h2>
    <p>${x(n)} of reviewers: ${g(r.join(", "))}</p>
    <${X} label="notes" rows=${o} columns=${[{title:"sample",cell:c=>l`<a href=${a(c)}>${O(c.id,60)}</a>`},{title:"label",cell:c=>g(c.label)},{title:"remark",wrap:!0,cell:c=>O(c.remark,300)},{title:"",cell:c=>c.is_current?"":"about an earlier answer"}]} />`}function Jn({name:e,params:t}){let s=L("run",{name:e},c=>c.unfinished?[e]:null),o=t.get("by")||"",r=L(o?"slices":null,{name:e,by:o});return D({f:()=>P(["run",e,"samples"],{where:"failed:yes"}),s:()=>P(["run",e,"samples"]),Escape:()=>P(["runs"])}),l`<${H} answer=${s} view=${c=>l`
    <${B} path=${[["runs",k(["runs"])]]} />
    <h1>${g(c.name)}${" "}
      ${c.unfinished?l`<span class="badge ${c.status}">${c.status}</span>`:null}${" "}
      <${ue} state=${s.live} /></h1>
    <p class="lead">${c.model?l`model: <b>${g(c.model)}</b>`:""}
      ${c.parent?l` · trajectories of ${g(c.parent)}, scored again`:""}</p>
    <div class="columns">
      <section>
        <${Eo} run=${c} />
        <div class=${c.unfinished?"unfinished":""}>
          <${wt} table=${c.table} caption="Summary" /></div>
        <${V} blocks=${c.notes} />
        ${c.histogram?l`<h2>Rewards</h2><${yn} histogram=${c.histogram} />`:null}
        <${zn} name=${c.name} />
        ${c.keys?.length?l`<${Po} run=${c} by=${o} answer=${r} />`:null}
      </section>
      <${Lo} run=${c} />
    </div>`} />`}function Eo({run:e}){let{numbers:t,outcomes:n,unfinished:s,asked:o}=e,r=c=>k(["run",e.name,"samples"],{where:c}),a=s&&o?` of ${x(o)}`:"";return l`
    <div class="headline ${s?"unfinished":""}">
      <div><span class="big">${t.text.mean}</span>${" "}
        <span class="soft">mean reward${s?", of what finished first":""}</span></div>
      <div>95% interval ${t.text.interval}, n ${x(t.n)}${a}</div>
      ${t.errors?l`<div><${bt} of=${t} /></div>`:null}
    </div>
    ${e.resume?l`<p>Go on with it: <code>${g(e.resume)}</code></p>`:null}
    <${Ao} run=${e} />
    ${a?l`<progress aria-label="finished" value=${t.n} max=${o}></progress>`:null}
    ${n?l`<${En} counts=${n} />`:null}
    <p class="toolbar"><a class="button primary" href=${r("")}>All samples</a>
      ${n?.failed?l`<a class="button" href=${r("failed:yes")}>Failures</a>`:null}
      ${n?.errored?l`<a class="button" href=${r("errored:yes")}>Errors</a>`:null}</p>`}var[Mo,To]=[5,3];function Ao({run:e}){let t=Q([]),{asked:n,numbers:s,status:o}=e;if(o!=="running"||!n||s.n>=n)return null;let r=t.current;r.at(-1)?.n!==s.n&&r.push({n:s.n,at:performance.now()/1e3}),r.length>100&&r.shift();let[a,c]=[r[0],r.at(-1)],[i,p]=[c.n-a.n,c.at-a.at];if(i<To||p<Mo)return l`<p class="soft" role="status">time left: not known yet</p>`;let u=(n-s.n)*p/i,m=`${(i/p).toPrecision(2)} items per second in the last ${W(p)}`;return l`<p role="status">about ${W(u)} left
    <span class="soft">${`, at ${m}; what is slow finishes last`}</span></p>`}function Lo({run:e}){let{pass_threshold:t,started:n,finished:s}=e,o=s&&n&&(Date.parse(s)-Date.parse(n))/1e3,r=p=>l`<pre tabindex="0">${g(JSON.stringify(p,null,2))}</pre>`,a=[["passes from",t===null?"nothing: the reward is the return":`reward \u2265 ${t}`],["samples",e.samples&&x(e.samples)+(e.repeats>1?`, ${e.repeats} attempts each`:"")],["tokens per item",e.tokens&&`median ${x(e.tokens.median)}, p95 ${x(Math.round(e.tokens.p95))}`],["time per item",e.seconds&&`median ${W(e.seconds.median)}, p95 ${W(e.seconds.p95)}`],["started",n&&l`<time datetime=${n} title=${n}>${ce(n)}</time>`],["took",o&&W(o)],["saved to",l`<code>${g(e.path)}</code>`]],{functions:c,versions:i}=e;return l`<aside>
    <h2>About this run</h2>
    <${V} blocks=${e.about} />
    <${ne} rows=${a} />
    <${we} names=${[e.name]} />
    <details><summary>Settings</summary>${r(e.config)}</details>
    <details><summary>Functions and versions</summary>${r({functions:c,versions:i})}</details>
  </aside>`}function Po({run:e,by:t,answer:n}){return l`<h2>Slices</h2>
    <p><${F} label="by" value=${t} none="choose a key" options=${e.keys}
      onChange=${s=>C({by:s})} /></p>
    ${n.problem?l`<${j} problem=${n.problem} />`:null}
    ${n.data&&!n.isStale?l`<${Oo} run=${e} slices=${n.data} />`:null}`}function Oo({run:e,slices:t}){let{by:n,rows:s,all:o,total:r}=t,a=$=>$.value===null?"\u2013":g($.value),c=$=>$.value!==null&&P(["run",e.name,"samples"],{where:`${vt(n)}:${vt($.value)}`}),i=($,h)=>({label:$,value:h.mean,low:h.low,high:h.high,second:h.errors?h.mean_scored:null}),p=[{title:n,cell:a},{title:"n",numeric:!0,cell:$=>x($.n)},{title:"mean",numeric:!0,cell:$=>$.text.mean},{title:"95% interval",cell:$=>$.text.interval},{title:"scored only",numeric:!0,cell:$=>$.text.mean_scored,errors:!0},{title:"passed",numeric:!0,cell:$=>$.text.pass_rate},{title:"errors",numeric:!0,cell:$=>x($.errors)}],u=s.slice(0,40).map($=>i(a($),$)),m=r>s.length?`the first ${s.length} of ${x(r)} values`:"",d=new Set(e.notes.map($=>$.line));return l`
    <${be} at=${o.mean} rows=${[...u,{...i("all",o),strong:!0}]} />
    <${X} label="slices" onRow=${c} rows=${s}
      columns=${p.filter($=>o.errors||!$.errors)} />
    ${m?l`<p class="soft">${m}</p>`:null}
    ${o.errors?l`<p class="legend soft"><span class="key second"></span>
            without errored items, which the mean counts as 0</p>`:null}
    ${s.length>1?l`<p class="soft">${s.length} slices looked at: some will stand out by chance. Two runs
            compared by slices are corrected for that.</p>`:null}
    <${V} blocks=${t.notes.filter($=>!d.has($.line))} />`}var Tt=e=>k([e.kind==="curve"?"curve":"run",e.name]);function No(e){let t=(e.verdicts||[]).map(s=>s.kind);return[e.name,e.model,...e.tags,e.note,e.status,...t,e.kind].join(" ").toLowerCase()}var Mt=100,Ro={run:e=>e.name,model:e=>e.model,mean:e=>e.mean,n:e=>e.n,errors:e=>e.errors,status:e=>e.status,started:e=>e.started};function jo(e,t){let n=t.replace(/^-/,""),s=Ro[n]||(c=>c.settings[n]),o=t.startsWith("-")?-1:1,r=c=>c==null,a=(c,i)=>typeof c=="number"?c-i:String(c).localeCompare(String(i),"en",{numeric:!0});return[...e].sort((c,i)=>{let[p,u]=[s(c),s(i)];return r(p)||r(u)?r(p)-r(u):o*a(p,u)})}function Do(e,t){if(!t)return[["",e]];let n=new Map;for(let s of e)for(let o of t==="tag"?s.tags.length?s.tags:["no tag"]:[s.eval])n.set(o,[...n.get(o)||[],s]);return[...n]}function Vn({params:e}){let t=L("runs",{},()=>[]),n=e.get("where")||"",s=e.get("sort")||"",o=e.get("group")||"",r=e.getAll("cols"),a=e.getAll("mark"),c=n.toLowerCase().split(/\s+/).filter(Boolean),i=t.data?.runs||[],p=i.filter(y=>a.includes(y.name)),u=i.filter(y=>c.every(M=>No(y).includes(M))),m=Do(s?jo(u,s):u,o),d=m.flatMap(([,y])=>y),[$,h]=N(Mt),w=Math.min(Number(e.get("at")||0),Math.max(0,d.length-1)),f=y=>{C({at:Math.max(0,Math.min(y,d.length-1))||""}),document.querySelector("[data-list]")?.focus({preventScroll:!0}),requestAnimationFrame(()=>document.querySelector("tr.at")?.scrollIntoView({block:"nearest"}))},v=y=>{if(!y||y.problem)return;let E=p.filter(A=>A.kind==="curve"==(y.kind==="curve")).map(A=>A.name).filter(A=>A!==y.name);C({mark:a.includes(y.name)?E:[...E,y.name]})},_=()=>{let y=p.map(M=>M.name).reverse();y.length<2||(p[0].kind==="curve"?P(["curves"],{curve:y}):y.length===2?P(["compare",...y]):P(["several"],{run:y}))};D({j:()=>f(w+1),ArrowDown:()=>f(w+1),k:()=>f(w-1),ArrowUp:()=>f(w-1),Home:()=>f(0),End:()=>f(d.length-1),Enter:()=>d[w]&&!d[w].problem&&se(Tt(d[w])),x:()=>v(d[w]),c:_});let S=(y,M,E=y)=>{let A=s===y?"ascending":s===`-${y}`?"descending":void 0,J=s===`-${y}`?y:s===y?"":`-${y}`;return l`<th scope="col" class=${M?"num":""} aria-sort=${A}>
      <button class="plain" onClick=${()=>C({sort:J,at:""})}>${O(E,30)}${{ascending:" \u2191",descending:" \u2193"}[A]||""}</button></th>`};return l`<${H} answer=${t} view=${({roots:y})=>{if(!i.length)return l`<h1>Runs</h1><p>No runs under ${y.join(", ")}.</p>
        <p class="soft"><code>heldout run FILE</code> makes one.</p>`;let M=i.every(U=>U.kind==="curve"||!(U.min<0||U.max>1)),E=p.length>1,A=p[0]?.kind==="curve"?"Draw":"Compare",J=[...new Set(i.flatMap(U=>Object.keys(U.settings)))].sort(),Y=Math.max($,w+Mt/2),Ee=0;return l`
      <h1>Runs <${ue} state=${t.live} /></h1>
      <div class="toolbar">
        <input type="search" aria-label="Filter by name, model or status" placeholder="name, model, status"
          value=${n} onInput=${U=>C({where:U.target.value,at:""})} data-filter />
        <${F} label="group by" value=${o} none="nothing" options=${["eval","tag"]}
          onChange=${U=>C({group:U,at:""})} />
        <${Xe} fields=${J} chosen=${r} onChange=${U=>C({cols:U})} />
        <button disabled=${!E} onClick=${_}>
          ${A} ${E?`the ${p.length} marked`:"runs: mark two or more"}</button>
      </div>
      <div class="scroll" tabindex="0" role="group" aria-label="runs" data-list><table class="runs">
        <thead><tr>
          <th scope="col"><span class="hidden">marked</span></th>${S("run")}${S("model")}
          ${S("mean",!0)}<th scope="col">95% interval</th>
          <th scope="col"><span class="hidden">chart</span></th>${S("n",!0)}${S("errors",!0)}
          ${S("status")}${S("started")}
          ${r.map(U=>S(U,!1,U.replace(/^sampling\./,"")))}
        </tr></thead>
        ${m.map(([U,Pt])=>Ee<Y&&l`<tbody key=${U}>
            ${o?l`<tr class="group"><th colspan=${10+r.length} scope="rowgroup">
              ${g(U)} <span class="soft">${x(Pt.length)}</span></th></tr>`:null}
            ${Pt.slice(0,Math.max(0,Y-Ee)).map(Re=>l`<${Bo} key=${Re.name} run=${Re} at=${Ee++===w} isBounded=${M}
                cols=${r} isMarked=${a.includes(Re.name)} onMark=${()=>v(Re)} />`)}</tbody>`)}
      </table></div>
      ${d.length>Y?l`<${Io} rest=${d.length-Y}
        onMore=${()=>h(Y+Mt)} />`:null}
      <p class="soft" role="status">${x(u.length)} of ${x(i.length)} runs${a.length?` \xB7 marked: ${a.map(g).join(" and ")}`:""}${R()?"":` \xB7 ${y.join(", ")}`}</p>`}} />`}function Io({rest:e,onMore:t}){let n=Q(null);return q(()=>{let s=new IntersectionObserver(([o])=>o.isIntersecting&&t());return s.observe(n.current),()=>s.disconnect()}),l`<p ref=${n}><button onClick=${t}>${x(e)} more</button></p>`}function Bo({run:e,at:t,isBounded:n,isMarked:s,cols:o,onMark:r}){let a=t?"at":"";if(e.problem)return l`<tr class=${a}><td></td><td>${g(e.name)}</td>
      <td colspan=${8+o.length} class="errored">${O(e.problem)}${e.repair?l` <code>${e.repair}</code>`:null}</td></tr>`;let c=e.kind==="curve",i=e.unfinished?"soft":"",p=c?l`<${Fo} run=${e} />`:l`<span class="badge ${e.status}">${e.status}</span>`,u=d=>!d.target.closest("a, input, label")&&se(Tt(e)),m=l`<input type="checkbox" aria-label="mark ${e.name}" checked=${s}
    onChange=${r} />`;return l`<tr class=${a} onClick=${u}>
    <td>${m}</td>
    <td><a href=${Tt(e)}>${g(e.name)}</a>
      ${e.kind==="run"?"":l` <span class="soft">${e.kind}</span>`}</td>
    <td class="soft">${O(e.model,40)}${e.tags.map(d=>l` <span class="badge">${g(d)}</span>`)}</td>
    <td class="num ${i}">${e.text.mean}</td>
    <td class=${i}>${e.text.interval}</td>
    <td>${Ho(e,n)}</td>
    <td class="num">${x(e.n)}${e.unfinished&&e.asked?l`<span class="soft"> of ${x(e.asked)}</span>`:""}</td>
    <td class="num">${e.errors?l`<span class="errored"><${I} outcome="errored" />${x(e.errors)}</span>`:x(e.errors)}</td>
    <td>${p}</td>
    <td class="soft" title=${e.started}>${ce(e.started)}</td>
    ${o.map(d=>l`<td class="setting">${O(e.settings[d]??"\u2013",40)}</td>`)}
  </tr>`}function Ho(e,t){if(e.kind==="curve")return l`<${xn} points=${e.spark} />`;if(!t)return null;let n=e.errors?e.mean_scored:null;return l`<${_n} value=${e.mean} low=${e.low} high=${e.high} second=${n} />`}function Fo({run:e}){let t=e.verdicts.length>1;return l`${e.verdicts.map(({label:n,kind:s})=>l`<span class="badge ${s||""}">${t?`${O(n,24)}: `:""}${s||"no verdict"}</span> `)}<span class="soft">at step ${e.step??"\u2013"}${e.status==="finished"?"":`, ${e.status}`}${t?l`; numbers of ${O(e.verdicts[0].label,24)}`:""}</span>`}function Yn({name:e,params:t}){let n=t.get("id"),s={where:t.get("where")||"",sort:t.get("sort")||"",at:t.get("at")||""},o={name:e,id:n,repeat:t.get("repeat")||""},r=L("sample",o),[a,c]=oe(!1),[i,p]=oe(!0),[u,m]=oe(!1),d=L(u?"record":null,o),$=()=>P(["run",e,"samples"],s),{where:h,sort:w}=s,f=L("position",{name:e,where:h,sort:w,id:n,repeat:o.repeat}).data,v=E=>E&&P(["run",e,"sample"],{...s,id:E.id,repeat:E.repeat||"",at:E.at||""}),_=E=>{let{repeats:A,repeat:J}=r.data,Y=A[A.findIndex(Ee=>Ee.repeat===J)+E];Y&&C({repeat:Y.repeat||""})};D({m:c,e:p,s:m,n:()=>v(f?.next),p:()=>v(f?.previous),"[":()=>_(-1),"]":()=>_(1),Escape:$});let S=(E,A,J)=>l`<button aria-pressed=${A} onClick=${J}>${E}</button>`,b=l`<div class="toolbar">
    ${S("Markdown",a,c)}
    ${S("reasoning",!i,p)}
    ${R()?null:S("JSON",u,m)}
    <span class="space"></span>
    ${f?l`<${Uo} position=${f} where=${h} />`:null}
    <button disabled=${!f?.previous} onClick=${()=>v(f.previous)} title="p">
      ← previous</button>
    <button disabled=${!f?.next} onClick=${()=>v(f.next)} title="n">next →</button>
  </div>`,y=E=>d.data&&!d.isStale?l`<pre tabindex="0">${g(d.data.text)}</pre>`:d.problem?l`<${j} problem=${d.problem} />`:E.turns.length?l`<${fe} sample=${E} rendered=${a} folded=${i} />`:l`<h2>Episode</h2><p class="soft">There is no conversation.</p>
      <${ne} rows=${Object.entries(E.input).map(At)} />`;return l`<${H} answer=${r} view=${E=>l`
    <${B} path=${[["runs",k(["runs"])],[e,k(["run",e])],["samples",k(["run",e,"samples"],s)]]} />
    <h1><${I} outcome=${E.outcome} /> ${g(E.id)}</h1>
    <${qo} name=${e} sample=${E} list=${s} />
    ${E.error!==null?l`<div class="problem"><p><b>errored:</b> ${g(E.error)}</p>
            <p class="soft">It has no score. What was said until then is below.</p></div>`:null}
    <div class="columns">
      <section>${R()&&!E.turns.length?null:b}${y(E)}</section>
      <aside class="score"><${Wo} sample=${E} /><${Gn} sample=${E} />
        <${Go} sample=${E} /></aside>
    </div>`} />`}function Uo({position:e,where:t}){let{at:n,total:s}=e;return l`<span class="position" role="status">${n===null?"not among the":`${x(n+1)} of`} ${x(s)}${t?l` · <code>${g(t)}</code>`:null}</span>`}var At=([e,t])=>[g(e),g(t??"\u2013")];function qo({name:e,sample:t,list:n}){if(t.repeats.length<2)return null;let s=o=>k(["run",e,"sample"],{...n,id:t.id,repeat:o||""});return l`<nav class="tabs" aria-label="attempts">${t.repeats.map(({repeat:o,outcome:r})=>l`<a aria-current=${o===t.repeat?"true":void 0}
      href=${s(o)}><${I} outcome=${r} /> attempt ${o+1}</a>`)}</nav>`}function Wo({sample:e}){let t=e.answer?l`<span class="clamp">${g(e.answer)}</span>`:l`<em>none</em>`;return l`<h2>Score</h2>
    <p class="headline"><span class="big">${e.text.reward}</span> <span class="soft">reward</span>${" "}
      <${I} outcome=${e.outcome} /> ${e.outcome}</p>
    ${e.metrics.map(n=>l`<${Ko} metric=${n} />`)}
    <${ne} rows=${[["target",e.target!==null&&l`<code>${g(e.target)}</code>`],["answer",e.turns.length>0&&t],["final state",e.outcome_state&&l`<code>${g(e.outcome_state)}</code>`]]} />`}function Ko({metric:e}){let{name:t,text:n,weight:s,extracted:o}=e,r=o===null?l`<em>nothing</em>`:l`<code>${g(o)}</code>`;return l`<div class="metric">
    <div><b>${g(t)}</b> ${n.value}${" "}
      <span class="soft">${s?`\xD7 ${s}`:"tracked only"}</span></div>
    ${e.has_extracted?l`<div>extracted: ${r}</div>`:null}
    ${e.note?l`<div class="soft">${g(e.note)}</div>`:null}
    ${e.reply?l`<details><summary>the judge's reply</summary>
            <pre class="said" tabindex="0">${g(e.reply)}</pre></details>`:null}
  </div>`}function Go({sample:e}){let{ended_by:t,limit:n,truncated:s,finish_reason:o}=e.stop,r=[n?`limit: ${n}`:t,s?"last turn truncated":null,o?`finish reason ${o}`:null],{tokens:a}=e,c=[["ended by",g(r.filter(Boolean).join(", "))],["tokens",a&&`${x(a.prompt)} in, ${x(a.completion)} out`],["token trace",e.trace&&l`<${kn} parts=${e.trace} />`],["took",e.seconds!==null&&W(e.seconds)],["requests",e.requests],...Object.entries(e.metadata).map(At)];return l`<h2>How it went</h2><${ne} rows=${c} />
    ${e.turns.length?l`<details><summary>Input</summary>
            <${ne} rows=${Object.entries(e.input).map(At)} /></details>`:null}
    ${e.tools.length?l`<details><summary>Tools (${e.tools.length})</summary>
            ${e.tools.map(({name:i,description:p,parameters:u})=>l`<h3>${g(i)}</h3>
                ${p?l`<p>${g(p)}</p>`:null}
                <pre class="said">${g(u)}</pre>`)}</details>`:null}`}var Qn="heldout-views",Xn=50;function ct(){try{return JSON.parse(G.get(Qn)||"[]").filter(t=>typeof t.name=="string").slice(-Xn)}catch{return[]}}function Zn({name:e,view:t}){let[n,s]=N(ct),[o,r]=N(""),[a,c]=N(""),i=Q(null);if(!G.works())return null;let p=w=>{G.set(Qn,JSON.stringify(w.slice(-Xn))),s(ct())},u=w=>ct().filter(f=>f.name!==w),m=()=>{let w=o.trim();if(!w)return;p([...u(w),{name:w,...t}]);let f=ct().some(v=>v.name===w);c(f?`saved ${g(w)}`:"the browser did not keep it"),r("")},d=w=>{p(u(w)),c(`deleted ${g(w)}`),i.current.querySelector("summary").focus()},$=()=>i.current.removeAttribute("open"),h=k([],t);return l`<details class="chooser views" ref=${i}><summary>views</summary><div>
    ${n.map(({name:w,...f})=>{let v=k([],f)===h;return l`<span><a href=${k(["run",e,"samples"],f)} onClick=${$}
          aria-current=${v?"true":void 0}>${g(w)}</a>
        <button class="plain" aria-label="delete ${g(w)}"
          onClick=${()=>d(w)}>×</button></span>`})}
    <span><input type="text" aria-label="name of this view" placeholder="name of this view"
        maxlength="60" value=${o} onInput=${w=>r(w.target.value)}
        onKeyDown=${w=>w.key==="Enter"&&m()} />
      <button disabled=${!o.trim()} onClick=${m}>save</button></span>
    <span class="soft" role="status">${a}</span></div></details>`}var zo=[["failed","failed:yes"],["errored","errored:yes"],["truncated","truncated:yes"]],Jo=200,Vo=1e3,es=new Map;function ts({name:e,params:t}){let n=t.get("where")||"",s=t.get("sort")||"",o=t.getAll("cols"),r={name:e,where:n,sort:s,cols:o},a=Yo(r),[c,i]=N(null),p=a.data,u=p&&!a.isStale&&!a.problem,m=u&&p.total!==null,d=Qo(e,n,u&&p.mean&&p.picked==="metadata"),$=Xo(e,p),h=f=>{let v=n.split(/\s+/).filter(Boolean),_=v.includes(f)?v.filter(S=>S!==f):[...v,f];C({where:_.join(" "),at:""})};D({f:()=>h("failed:yes"),Escape:()=>P(["run",e])});let w=n.split(/\s+/);return l`
    <${B} path=${[["runs",k(["runs"])],[e,k(["run",e])]]} />
    <h1>Samples</h1>
    <div class="toolbar">
      <${er} where=${n} completions=${p?.completions||[]} isBad=${a.problem!==null} />
      ${zo.map(([f,v])=>l`<button aria-pressed=${w.includes(v)} onClick=${()=>h(v)}>
          <${I} outcome=${f} />${` ${f}`}
          ${m?l` <span class="soft">${x(p.counts[f])}</span>`:null}</button>`)}
      ${p?.fields.length&&!R()?l`<${Xe} fields=${p.fields} chosen=${o.length?o:p.extra}
              onChange=${f=>C({cols:f.length?f:["none"]})} />`:null}
      <${Zn} name=${e} view=${{where:n,sort:s,cols:o}} />
      ${u&&p.total&&!R()?l`<${tr} request=${r} />`:null}
    </div>
    <${nr} problem=${a.problem||c} where=${n} retry=${a.reload} />
    ${u?l`<${sr} head=${p} slices=${d} fresh=${$} onFresh=${a.reload} />`:p&&a.problem?l`<p class="soft" role="status">The rows are those of the last filter.</p>`:null}
    <${Mn} is=${p&&a.isStale&&!a.problem} />
    ${p?l`<${or} head=${p} request=${r} answer=${a} at=${Number(t.get("at")||0)}
            onProblem=${i} />`:a.problem?null:l`<p class="soft" role="status">Loading…</p>`}`}function Yo(e){let t={...e,limit:100},n=e.where&&!e.sort,s=L("rows",n?{...t,quick:1}:t),o=s.data?.total===null&&!s.isStale,r=L(o?"rows":null,t);return o?r.data&&!r.isStale?r:{...s,problem:s.problem||r.problem}:s}function Qo(e,t,n){let[,s]=N(0),o=es.get(e)||new Set;return q(()=>{if(!n)return;let r=setTimeout(()=>{es.set(e,o.add(t)),s(o.size)},Vo);return()=>clearTimeout(r)},[e,t,n]),o.size}function Xo(e,t){let[n,s]=N(0);return q(()=>{if(t?.running)return Fe([e],"",(o,r)=>s(r.lines),()=>{})},[e,t?.running]),t?Math.max(0,n-t.of):0}function Zo(e,t){let n=/(?:^|\s)-?([^\s:=<>!"]+)$/.exec(e)?.[1].toLowerCase();return n!==void 0&&t.some(({term:s})=>s.toLowerCase().startsWith(n))}function er({where:e,completions:t,isBad:n}){let[s,o]=N(null),r=s!==null&&Zo(s,t),a=()=>{s!==null&&(s!==e&&C({where:s,at:""}),o(null))};q(()=>{if(s===null||r)return;let p=setTimeout(a,Jo);return()=>clearTimeout(p)},[s]);let c=s??e,i=c.replace(/\S*$/,"");return l`<input class="filter" type="search" list="completions" aria-label="Filter" data-filter
      spellcheck="false" autocomplete="off" value=${c} aria-invalid=${n?"true":void 0}
      placeholder=${'filter: reward<0.5  level:hard  -truncated:yes  text:"refund"'}
      onInput=${p=>o(p.target.value)} onBlur=${a}
      onKeyDown=${p=>p.key==="Enter"&&a()} />
    <datalist id="completions">${t.map(({term:p,rows:u})=>l`<option value=${i+p}>${u===null?"":`${x(u)} rows`}</option>`)}</datalist>
    ${r?l`<span class="soft" role="status">Enter searches for the text</span>`:null}`}function tr({request:e}){let[t,n]=N(""),s=async o=>{n("\u2026");try{let{text:r,rows:a,total:c}=await te("table-file",{...e,cols:[],format:o}),i=document.createElement("a");i.href=URL.createObjectURL(new Blob([r])),i.download=`${e.name.replace(/[^\w.-]+/g,"-")}.${o}`,i.click(),URL.revokeObjectURL(i.href),n(a<c?`the first ${x(a)} of ${x(c)} rows`:"")}catch(r){n(r.message)}};return l`<span>${["csv","jsonl"].map(o=>l`<button onClick=${()=>s(o)} title="these rows as a file">${o}</button> `)}<span class="soft" role="status">${t}</span></span>`}function nr({problem:e,where:t,retry:n}){return e?e.at===void 0?l`<${j} problem=${e} retry=${n} />`:l`<p class="problem" role="alert"><code>${g(t.slice(0,e.at))}
    <mark>${g(t.slice(e.at))}</mark></code>${` ${g(e.message)}`}</p>`:null}function sr({head:e,slices:t,fresh:n,onFresh:s}){let o=[];e.mean&&o.push(l`mean reward <${Qe} of=${e.mean} />`),e.picked==="outcome"&&o.push("picked by their result, so a mean of these would say nothing about the policy"),e.picked==="metadata"&&R()&&o.push("an exported file has no mean of some of the rows; the run's slices have theirs"),e.picked==="metadata"&&t>1&&o.push(`${t} slices looked at: some stand out by chance`),e.near?.length&&o.push(l`did you mean ${e.near.map(a=>l`<button onClick=${()=>C({where:a,at:""})}>${g(a)}</button> `)}`),R()&&e.inside<e.of&&o.push(`${x(e.inside)} of ${x(e.of)} conversations are in this file; other rows are grey`);let r=e.total===null?`at least ${x(e.rows.length)}`:x(e.total);return e.total===null&&o.unshift("counting\u2026"),l`<p role="status" class="counts">${r} of ${x(e.of)} rows
    ${o.map(a=>l` · <span class=${typeof a=="string"?"soft":""}>${a}</span>`)}
    ${n?l` · <button onClick=${s}>${x(n)} new rows</button>`:null}</p>`}function or({head:e,request:t,answer:n,at:s,onProblem:o}){let{name:r,where:a,sort:c}=t,i=e.total??e.rows.length,p=n.of.replace("&quick=1",""),u=async(d,$,h)=>d===0?e.rows:(await te("rows",{...t,offset:d,limit:$},h)).rows,m=(d,$)=>P(["run",r,"sample"],{id:d.id,repeat:d.repeat||"",where:a,sort:c,at:$});return l`<${ke} label="samples" columns=${rr(e,c)} total=${i}
    version=${`${r} ${p} ${e.generation}`} isStale=${n.isStale||n.problem!==null}
    selected=${Math.min(s,Math.max(0,i-1))} load=${u}
    isAbsent=${d=>d.inside===!1}
    onSelect=${d=>C({at:d})} onOpen=${m} onProblem=${o} />`}function rr(e,t){let n=(i,p)=>({...p,sorted:t===i?"ascending":t===`-${i}`?"descending":void 0,onSort:()=>C({sort:t===`-${i}`?i:`-${i}`,at:""})}),s={width:"72px",numeric:!0},o=i=>e.repeats>1?l`<span class="soft"> #${i.repeat+1}</span>`:"",a=[{title:"extracted",width:"minmax(80px, 1.2fr)",cell:i=>i.error?l`<span class="errored">${O(i.error)}</span>`:i.extracted===null?l`<em>nothing</em>`:O(i.extracted??i.answer)},{title:"target",width:"minmax(60px, 1fr)",cell:i=>O(i.target)}],c=e.extra.map((i,p)=>n(i,{title:i.replace(/^(metric|metadata)\./,""),width:"minmax(60px, 1fr)",cell:u=>O(u.extra[p]??"",60)}));return[{title:l`<span class="hidden">outcome</span>`,width:"22px",cell:i=>l`<${I} outcome=${i.outcome} />`},n("id",{title:"sample",width:"minmax(90px, 1fr)",cell:i=>l`${O(i.id,60)}${o(i)}`}),n("reward",{...s,title:"reward",cell:i=>i.text.reward}),{title:"question",width:"minmax(140px, 3fr)",cell:i=>O(i.question)},...e.rows.some(i=>i.answer||i.error)?a:[],...c,n("tokens",{...s,title:"tokens",cell:i=>x(i.tokens)}),n("seconds",{...s,title:"time",cell:i=>W(i.seconds)})]}function ns({params:e}){let t=e.getAll("run"),n=e.getAll("allow"),s=L("several",{name:t,metric:e.get("metric")||"",allow:n});return D({Escape:()=>P(["runs"])}),l`<${H} answer=${s} view=${a=>{if(s.problem)return null;let[c,...i]=a.rows,p=i.map(h=>({label:g(h.name),value:h.readings[0].difference,low:h.readings[0].low,high:h.readings[0].high})),u=i.some(h=>h.has_errors),m=h=>C({run:[h,...t.filter(w=>w!==h)]}),d=(h,w)=>f=>f.readings?.[h].text[w]??"\u2013",$=[{title:"run",cell:h=>l`<a href=${k(["run",h.name])}>${g(h.name)}</a>`},{title:"mean reward",numeric:!0,cell:h=>h.text.mean},{title:"95% interval",cell:h=>h.text.interval},{title:"n",numeric:!0,cell:h=>x(h.n)},{title:"errors",numeric:!0,cell:h=>x(h.errors)},{title:`difference, ${a.metric}`,numeric:!0,cell:d(0,"difference")},{title:"simultaneous interval",cell:d(0,"interval")},{title:"p, Holm",numeric:!0,cell:d(0,"p")},{title:"of",numeric:!0,cell:h=>h.readings?.[0].n??"\u2013"},{title:"errored counted",cell:d(1,"difference"),errors:!0},{title:"its interval",cell:d(1,"interval"),errors:!0},{title:"verdict",cell:h=>h.verdict?l`<a href=${k(["compare",c.name,h.name],{allow:n})}>${h.verdict}</a>`:l`<span class="soft">compared with</span>`}];return l`
      <${B} path=${[["runs",k(["runs"])]]} />
      <h1>${i.length} runs <span class="soft">compared with</span> ${g(c.name)}</h1>
      <p>${i.length} comparisons, corrected for their number: p by Holm, and intervals by Bonferroni,
        so that all of them hold at once with 95% confidence. A verdict needs a whole interval on one side
        of 0${u?", with errored items counted and without them":""}.</p>
      <p><${F} label="compare with" value=${c.name} options=${t} onChange=${m} />${" "}
        <${F} label="add" value="" none="a run" options=${a.others}
          onChange=${h=>h&&C({run:[...t,h]})} /></p>
      <${be} at=${0} rows=${p} sign />
      <${X} label="runs" rows=${a.rows} columns=${$.filter(h=>u||!h.errors)} />
      ${i.map(h=>h.blocks.length?l`<details><summary>${g(h.name)}: what limits it</summary>
              <${V} blocks=${h.blocks} /></details>`:null)}`}} refused=${a=>a.status===409?l`<${Ct} names=${t} problem=${a} allow=${n} />`:null} />`}var ss="heldout-theme",lr=[["?","this help"],["/","filter"],["j k \u2191 \u2193 PgUp PgDn Home End","move"],["Enter","open"],["Esc","back"],["g r","all runs"],["x, c","mark a run; compare those marked"],["f","failures"],["r","remark on a sample, with --notes"],["n p","next and previous sample, or flip"],["[ ]","previous and next attempt, or step"],["\u2190 \u2192","move the crosshair of a curve"],["m e s d","Markdown; reasoning; JSON; difference"],["w","swap A and B"],["t","light or dark"],["y","copy the link"]];function ar({path:e,params:t}){let[n,s,o]=e,r={run:[t.get("id"),o==="samples"&&"samples",s],compare:[t.get("id"),s&&`${s} and ${o}`],curve:[t.get("id"),s]}[n];return g([...(r||["runs"]).filter(Boolean),"heldout"].join(" \xB7 "))}function ir({path:e,params:t}){let[n,s,o,r]=e,a=e.join("/");if(n==="run"&&s){let c={samples:ts,sample:Yn}[o]||Jn;return l`<${c} key=${a} name=${s} params=${t} />`}return n==="compare"&&s&&o?l`<${r==="sample"?Kn:In} key=${a} a=${s} b=${o} params=${t} />`:n==="curve"&&s?l`<${o==="sample"?qn:Fn} key=${a} name=${s} params=${t} />`:n==="several"?l`<${ns} key=${a} params=${t} />`:n==="curves"?l`<${Un} key=${a} params=${t} />`:l`<${Vn} key="runs" params=${t} />`}function cr({onClose:e}){return D({Escape:e}),l`<section class="help" aria-label="keys">
    <dl>${lr.map(([t,n])=>l`<dt><kbd>${t}</kbd></dt><dd>${n}</dd>`)}</dl>
    <label><input type="checkbox" checked=${!_t()}
      onChange=${t=>Ln(t.target.checked)} /> keys are on</label></section>`}var Lt=class extends ee{state={route:et(),help:!1,copied:!1};componentDidMount(){this.componentDidUpdate(),On(()=>this.setState({route:et()})),addEventListener("resize",()=>this.forceUpdate())}componentWillMount(){let t={"?":this.turnHelp,"g r":()=>P(["runs"]),"/":()=>document.querySelector("[data-filter]")?.focus(),Escape:()=>document.activeElement?.blur(),t:this.turnTheme,y:this.copy};_e({current:t})}turnHelp=()=>this.setState({help:!this.state.help});turnTheme=()=>{let t=matchMedia("(prefers-color-scheme: dark)").matches,s=(document.documentElement.dataset.theme||(t?"dark":"light"))==="dark"?"light":"dark";document.documentElement.dataset.theme=s,G.set(ss,s)};copy=async()=>{await navigator.clipboard.writeText(location.href),this.setState({copied:!0}),setTimeout(()=>this.setState({copied:!1}),1500)};skip=t=>{t.preventDefault(),document.getElementById("main").focus()};componentDidUpdate(){document.title=ar(this.state.route)}render(t,{route:n,help:s,copied:o}){let r=R()&&document.querySelector("meta[name=made]")?.content;return l`
      <a class="skip" href="#main" onClick=${this.skip}>to the content</a>
      <header class="top"><a class="brand" href=${k(["runs"])}>heldout</a>
        <span class="space"></span>
        ${o?l`<span role="status">copied</span>`:null}
        <button class="plain" onClick=${this.turnTheme} aria-label="light or dark">◐</button>
        <button class="plain" onClick=${this.turnHelp} aria-label="keys" aria-expanded=${s}>?</button>
      </header>
      ${s?l`<${cr} onClose=${this.turnHelp} />`:null}
      <main id="main" tabindex="-1">${ir(n)}</main>
      ${r?l`<footer class="soft">${r}</footer>`:null}`}};async function ur(){let e=G.get(ss);e&&(document.documentElement.dataset.theme=e),await Bt();let t=document.getElementById("data");t&&await Dt(t),gn(l`<${Lt} />`,document.getElementById("app"))}ur();})();
